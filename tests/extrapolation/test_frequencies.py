"""Tricks that change frequencies, against the papers' formulas in Python's floats."""

import math
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError

from megatron_mep.encodings.base import Encoding, LayerSizes
from megatron_mep.encodings.fope import Fope
from megatron_mep.encodings.hope import Hope
from megatron_mep.encodings.lrpe import Lrpe
from megatron_mep.encodings.p_rope import PRope
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.sinusoidal import Sinusoidal
from megatron_mep.extrapolation.another_base import Base, critical_dimension
from megatron_mep.extrapolation.base import Trick
from megatron_mep.extrapolation.interpolation import Interpolation
from megatron_mep.extrapolation.ntk import DynamicNtk, Ntk
from megatron_mep.extrapolation.yarn import NtkByParts, Yarn
from tests.encodings.oracle import fp64

LENGTH, SIZE, BASE = 64, 16, 1000.0
"""Training length, head size and base: pairs 0 to 2 turn a whole period and more in training, the others do not."""
PAIRS = range(SIZE // 2)
FAR = 131_071.0


def on(trick: Trick, encoding: Encoding | None = None) -> Encoding:
    encoding = encoding or Rope(base=BASE)
    assert trick.against(encoding) is None
    return trick.applied(encoding, LENGTH)


def frequencies(encoding: Encoding, size: int = SIZE) -> list[float]:
    """How far each pair turns from position 0 to 1."""
    return encoding.angles(fp64([1.0]), size)[0].tolist()


def by_parts(s: float, m: int, kept: float) -> float:
    frequency = BASE ** (-2 * m / SIZE)
    return kept * frequency + (1 - kept) * frequency / s


def kept_by_pairs(m: int, fast: float = 32.0, slow: float = 1.0) -> float:
    """One minus the released code's ramp, from the floor of one pair's number to the ceiling of the other's."""
    low, high = (SIZE * math.log(LENGTH / (turns * 2 * math.pi)) / (2 * math.log(BASE)) for turns in (fast, slow))
    low, high = max(math.floor(low), 0), min(math.ceil(high), SIZE - 1)
    return 1 - min(max((m - low) / (high - low), 0), 1)


def kept_by_turns(m: int, fast: float = 32.0, slow: float = 1.0) -> float:
    turns = LENGTH / (2 * math.pi / BASE ** (-2 * m / SIZE))
    return min(max((turns - slow) / (fast - slow), 0), 1)


@pytest.mark.parametrize(
    ("trick", "expected"),
    [
        (Interpolation(factor=3), lambda m: BASE ** (-2 * m / SIZE) / 3),
        (Ntk(factor=4), lambda m: (BASE * 4 ** (SIZE / (SIZE - 2))) ** (-2 * m / SIZE)),
        (Base(base=5e5), lambda m: 5e5 ** (-2 * m / SIZE)),
        (NtkByParts(factor=4), lambda m: by_parts(4, m, kept_by_pairs(m))),
        (NtkByParts(factor=4, ramp="turns"), lambda m: by_parts(4, m, kept_by_turns(m))),
        (NtkByParts(factor=4, beta_fast=6, beta_slow=2), lambda m: by_parts(4, m, kept_by_pairs(m, 6, 2))),
        (NtkByParts(factor=4, beta_fast=6, beta_slow=2, ramp="turns"),
         lambda m: by_parts(4, m, kept_by_turns(m, 6, 2))),
        (Yarn(factor=8), lambda m: by_parts(8, m, kept_by_pairs(m))),
    ],
    ids=lambda value: "" if callable(value) else f"{value.name} {getattr(value, 'ramp', '')}",
)  # fmt: skip
def test_frequencies_are_those_of_the_paper(trick: Trick, expected: Callable[[int], float]) -> None:
    torch.testing.assert_close(fp64(frequencies(on(trick))), fp64([expected(m) for m in PAIRS]), rtol=1e-12, atol=0)


def test_the_ramps_have_inner_points() -> None:
    for kept in (kept_by_pairs, kept_by_turns):
        assert any(0 < kept(m) < 1 for m in PAIRS), "otherwise the test above shows little"


def test_ntk_keeps_the_highest_frequency_and_divides_the_lowest() -> None:
    plain, changed = frequencies(Rope(base=BASE)), frequencies(on(Ntk(factor=4)))
    assert changed[0] == plain[0] == 1
    assert changed[-1] == pytest.approx(plain[-1] / 4, rel=1e-12)


def test_ntk_runs_over_the_dimensions_of_the_series() -> None:
    half = on(Ntk(factor=4), Rope(base=BASE, fraction=0.5))
    plain = frequencies(Rope(base=BASE, fraction=0.5))
    assert frequencies(half)[3] == pytest.approx(plain[3] / 4, rel=1e-12)
    assert frequencies(half)[4:] == [0] * 4
    # the highest half of a series over the whole head
    part = on(Ntk(factor=4), PRope(base=BASE, fraction=0.5))
    assert frequencies(part)[:4] == pytest.approx(frequencies(on(Ntk(factor=4)))[:4], rel=1e-12)
    assert frequencies(part)[4:] == [0] * 4


@pytest.mark.parametrize("trick", [Ntk(factor=4), DynamicNtk(), Base(base=5e5), Yarn(factor=4)])
def test_a_head_of_one_pair_turns_by_one(trick: Trick) -> None:
    assert frequencies(on(Base(base=5e5)), size=2) == [1]
    assert frequencies(on(Ntk(factor=4)), size=2) == [1]
    assert on(trick).angles(fp64([0.0, 2.0 * LENGTH]), 2).isfinite().all()


@pytest.mark.parametrize(("alpha", "length"), [(1.0, 65), (1.0, 256), (2.0, 256), (0.5, 100)])
def test_dynamic_ntk_follows_the_length(alpha: float, length: int) -> None:
    factor = alpha * length / LENGTH - (alpha - 1)
    base = BASE * factor ** (SIZE / (SIZE - 2))
    expected = [[position * base ** (-2 * m / SIZE) for m in PAIRS] for position in (1, length - 1)]
    angle = on(DynamicNtk(factor=alpha)).angles(fp64([1.0, length - 1.0]), SIZE)
    torch.testing.assert_close(angle, fp64(expected), rtol=1e-12, atol=0)


def test_queries_and_keys_of_a_step_turn_by_the_same_frequencies() -> None:
    dynamic, keys = on(DynamicNtk()), torch.arange(300, dtype=torch.float64)
    torch.testing.assert_close(dynamic.angles(keys[-1:], SIZE), dynamic.angles(keys, SIZE)[-1:], rtol=0, atol=0)


POSITIONS = torch.arange(LENGTH, dtype=torch.float32)


@pytest.mark.parametrize(
    "trick",
    [
        *(Interpolation(factor=1), Ntk(factor=1), DynamicNtk(), DynamicNtk(factor=4), Base(base=BASE)),
        *(NtkByParts(factor=1), NtkByParts(factor=1, ramp="turns"), Yarn(factor=1)),
    ],
)
@pytest.mark.parametrize(
    "encoding", [Rope(base=BASE), PRope(base=BASE), Hope(base=BASE).resolved(LENGTH), Lrpe(base=BASE)]
)
def test_what_changes_nothing_leaves_every_bit(trick: Trick, encoding: Encoding) -> None:
    changed = on(trick, encoding)
    assert changed.angles(POSITIONS, SIZE).equal(encoding.angles(POSITIONS, SIZE))
    factor = changed.query_factor(POSITIONS)
    assert factor is None or factor.eq(1).all()


@pytest.mark.parametrize("trick", [Ntk(factor=4), Base(base=5e5), NtkByParts(factor=4), Yarn(factor=4)])
def test_pairs_that_hope_leaves_alone_stay_alone(trick: Trick) -> None:
    hope = Hope(base=BASE).resolved(LENGTH)
    trained = frequencies(hope)
    assert trained.count(0) == 5
    assert [one == 0 for one in frequencies(on(trick, hope))] == [one == 0 for one in trained]


def test_yarn_multiplies_scores_by_the_square_of_what_it_multiplies_cosines_by() -> None:
    factor = on(Yarn(factor=4)).query_factor(POSITIONS)
    assert factor is not None
    assert factor.tolist() == pytest.approx([(0.1 * math.log(4) + 1) ** 2] * LENGTH, rel=1e-6)
    assert on(Yarn(factor=4, temperature=0)).query_factor(POSITIONS).eq(1).all()


def test_fp32_angles_are_exact_up_to_whole_turns_however_far() -> None:
    for trick in (Interpolation(factor=3), Ntk(factor=3), DynamicNtk(), Yarn(factor=3)):
        changed = on(trick)
        exact, rounded = (
            changed.angles(torch.tensor([0.0, FAR], dtype=dtype), SIZE) for dtype in (torch.float64, torch.float32)
        )
        torch.testing.assert_close(rounded.double().cos(), exact.cos(), rtol=0, atol=2**-22)
    stretched = on(Interpolation(factor=3), Sinusoidal()).added(torch.tensor([FAR]), 4)
    torch.testing.assert_close(
        stretched[0, 0], torch.tensor(FAR, dtype=torch.float64).div(3).sin(), rtol=0, atol=2**-22, check_dtype=False
    )


def test_interpolation_divides_the_positions_of_sinusoids_and_of_sums_of_waves() -> None:
    position = torch.arange(0, 33, 4, dtype=torch.float64)
    sinusoidal = on(Interpolation(factor=4), Sinusoidal())
    assert sinusoidal.added(position, 8).equal(Sinusoidal().added(position / 4, 8))
    fope = Fope().resolved(LENGTH)
    declared = fope.layer_weights(LayerSizes(4, 32, 8), torch.Generator().manual_seed(0))
    weights = {name: weight.value for name, weight in declared.items()}
    heads = torch.randn(len(position), 2, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = on(Interpolation(factor=4), fope).turned(heads, position, **weights)
    assert turned.equal(fope.turned(heads, position / 4, **weights))
    assert not turned.equal(fope.turned(heads, position, **weights))


def test_lrpe_under_a_trick_mixes_dimensions_as_before() -> None:
    lrpe = Lrpe(base=BASE, transform="dct")
    heads = torch.randn(5, 1, 2, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    at_zero = torch.zeros(5, dtype=torch.float64)
    assert on(Ntk(factor=4), lrpe).turned(heads, at_zero).equal(lrpe.turned(heads, at_zero))
    assert not lrpe.turned(heads, at_zero).allclose(heads)


def test_the_critical_dimension_of_llama_is_92() -> None:
    assert critical_dimension(10_000, 128, 4096) == 92
    assert critical_dimension(500, 128, 4096) == 128, "all of them"
    assert critical_dimension(10_000, 128, 6) == 0, "none turns a whole period"


def test_the_new_base_tells_the_critical_dimension_and_its_period() -> None:
    based = Base(base=1e6).applied(Rope(), 4096)
    period = 2 * math.pi * 1e6 ** (92 / 128)
    assert based.remark(128) == f"base 1e+06, critical dimension 92 of 128, of period {period:.0f}"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"factor": 0.5}) for kind in (Interpolation, Ntk, NtkByParts, Yarn)),
        *((kind, {}) for kind in (Interpolation, Ntk, NtkByParts, Yarn, Base)),
        (DynamicNtk, {"factor": 0.0}),
        (Base, {"base": 1.0}),
        (Yarn, {"factor": 2, "temperature": -0.1}),
        (Yarn, {"factor": 2, "beta_fast": 1}),
        (NtkByParts, {"factor": 2, "beta_slow": 32}),
    ],
)
def test_what_makes_no_change_of_frequencies_is_refused(kind: type[Trick], options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate(options)
