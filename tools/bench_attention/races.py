"""Who is compared with whom, and the rows that come of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tools.bench_attention.contenders import BASELINE, Contender, program
from tools.bench_attention.memory import peak_mib
from tools.bench_attention.problem import CASES, Case, Shape, inputs_of
from tools.bench_attention.table import LeftOut, Row
from tools.bench_attention.timing import Clock, race


@dataclass(frozen=True)
class Race:
    """Who computes the same."""

    shape: Shape
    case: Case
    contenders: tuple[Contender, ...]
    """Besides the baseline; at least one."""


def planned(shapes: Sequence[Shape], contenders: Sequence[Contender]) -> tuple[list[Race], list[LeftOut]]:
    """Who computes what, and who does not."""
    races: list[Race] = []
    left_out: list[LeftOut] = []
    for shape in shapes:
        for case in CASES:
            able = []
            for contender in contenders:
                reason = contender.refusal(shape, case)
                if reason is None:
                    able.append(contender)
                else:
                    left_out.append(LeftOut(shape.length, case, contender.name, reason))
            if able:
                races.append(Race(shape, case, tuple(able)))
    return races, left_out


def peaks_mib(each: Race, num_threads: int) -> list[float]:
    """Memory of the baseline, then of the contenders."""
    return [peak_mib(contender, each.shape, each.case, num_threads) for contender in (BASELINE, *each.contenders)]


def run(each: Race, peaks: Sequence[float], num_pairs: int, clock: Clock) -> Iterator[Row]:
    """Times a race; the baseline's row has the median of all that was timed of it."""
    inputs = inputs_of(each.shape)
    baseline = program(BASELINE, inputs, each.case)
    programs = {contender.name: program(contender, inputs, each.case) for contender in each.contenders}
    pairs = race(baseline, programs, num_pairs, clock)
    baseline_s = [second for own in pairs.values() for second in own.baseline_s]
    place = each.shape.length, each.case
    yield Row(*place, BASELINE.name, 1e3 * median(baseline_s), 1.0, (1.0, 1.0), peaks[0])
    for contender, peak in zip(each.contenders, peaks[1:], strict=True):
        own, work = pairs[contender.name], contender.work(inputs)
        shares = (work.kept, work.dropped) if work else (None, None)
        yield Row(*place, contender.name, 1e3 * median(own.own_s), own.ratio, own.ratio_quartiles, peak, *shares)
