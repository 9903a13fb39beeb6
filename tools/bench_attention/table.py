"""The rows of a measurement as text: a table, and what was left out of it and why."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tools.bench_attention.problem import Case

HEADER = (
    f"{'length':>6} {'case':16} {'contender':16} {'ms':>9} {'/ unbiased (quartiles)':^24} {'MiB':>8} "
    f"{'kept':>6} {'dropped':>8}"
)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    length: int
    case: Case
    contender: str
    ms: float
    """The median."""
    ratio: float
    """Time over that of unbiased attention, the median of all pairs."""
    ratio_quartiles: tuple[float, float]
    mib: float
    """Peak memory above the inputs."""
    kept: float | None = None
    """Share of the pairs of a query and a key it sees that were computed, where any may be dropped."""
    dropped: float | None = None
    """The proved bound of what was dropped of any row's softmax."""


@dataclass(frozen=True)
class LeftOut:
    """A line that is not there."""

    length: int
    case: Case
    contender: str
    reason: str


def line(row: Row) -> str:
    """The row as a line under `HEADER`."""
    low, high = row.ratio_quartiles
    ratio = f"{row.ratio:.3f} ({low:.3f}-{high:.3f})"
    kept = "" if row.kept is None else f"{row.kept:.3f}"
    dropped = "" if row.dropped is None else f"{row.dropped:.1e}"
    place = f"{row.length:6} {row.case:16} {row.contender:16}"
    return f"{place} {row.ms:9.1f} {ratio:^24} {row.mib:8.1f} {kept:>6} {dropped:>8}".rstrip()


def left_out_lines(left_out: Iterable[LeftOut]) -> Iterator[str]:
    """One line for each reason, with the contenders, cases and lengths that it holds for."""
    of_reason: dict[str, list[LeftOut]] = {}
    for each in left_out:
        of_reason.setdefault(each.reason, []).append(each)
    for reason, those in of_reason.items():
        names = dict.fromkeys(each.contender for each in those)
        cases = dict.fromkeys(each.case for each in those)
        lengths = dict.fromkeys(str(each.length) for each in those)
        yield f"left out: {', '.join(names)} ({', '.join(cases)}; {', '.join(lengths)}): {reason}"
