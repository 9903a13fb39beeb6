"""KERPLE's kernels as biases, against the paper's formulas in Python's floats and against what they are limits of."""

import math

import pytest
import torch
from torch import Tensor

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.kernels import Kernel, Logarithmic, Power, PowerLogarithmic, unbounded
from megatron_mep.encodings.kerple import Kerple3Log, KerpleBias, KerpleLog, KerplePower, KerpleWeighted
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.slopes import alibi_slopes
from tests.encodings.oracle import bias_of, fp64, weights_of

R1, R2, R3, R4 = (0.01, 1.0, 1.98), (0.99, 0.5, 0.01), (0.3, 0.02, 0.99), (1.5, 0.5, 1.0)
DISTANCES = [0, 1, 2, 3, 17, 255, 256, 257, 4099, 131_071]
BIASES: tuple[tuple[KerpleBias, Kernel], ...] = (
    (KerpleLog(), Logarithmic()),
    (KerplePower(), Power()),
    (Kerple3Log(), PowerLogarithmic()),
)


def positive(values: tuple[float, ...]) -> Tensor:
    """What the formula's softplus makes these values of."""
    return unbounded(fp64(values))


def exponent(values: tuple[float, ...]) -> Tensor:
    """What the formula's sigmoid, twice, makes these values of."""
    return torch.logit(fp64(values) / 2)


def test_log_follows_its_formula() -> None:
    bias = KerpleLog().of_distance(fp64(DISTANCES), r1=positive(R1), r2=positive(R2))
    expected = [[-r1 * math.log(1 + r2 * d) for d in DISTANCES] for r1, r2 in zip(R1, R2, strict=True)]
    torch.testing.assert_close(bias, fp64(expected), rtol=1e-12, atol=0)


def test_power_follows_its_formula() -> None:
    bias = KerplePower().of_distance(fp64(DISTANCES), r1=positive(R1), r2=exponent(R4))
    expected = [[-r1 * d**r2 for d in DISTANCES] for r1, r2 in zip(R1, R4, strict=True)]
    torch.testing.assert_close(bias, fp64(expected), rtol=1e-12, atol=0)


def test_3log_follows_its_formula() -> None:
    bias = Kerple3Log().of_distance(fp64(DISTANCES), r1=positive(R1), r2=positive(R2), r3=exponent(R4))
    rows = zip(R1, R2, R4, strict=True)
    expected = [[-r1 * math.log(1 + r2 * d**r3) for d in DISTANCES] for r1, r2, r3 in rows]
    torch.testing.assert_close(bias, fp64(expected), rtol=1e-12, atol=0)


def test_3log_with_exponent_1_is_log() -> None:
    r1, r2 = positive(R1), positive(R2)
    three = Kerple3Log().of_distance(fp64(DISTANCES), r1=r1, r2=r2, r3=torch.zeros(3).double())
    assert three.equal(KerpleLog().of_distance(fp64(DISTANCES), r1=r1, r2=r2))


def test_power_with_exponent_1_is_alibi() -> None:
    distance = torch.arange(131_072).double()
    slopes = alibi_slopes(12).double()
    power = KerplePower().of_distance(distance, r1=unbounded(slopes), r2=torch.zeros(12).double())
    torch.testing.assert_close(power, bias_of(Alibi(), distance, 12), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("encoding", "kernel"), BIASES)
def test_each_is_mep_of_its_kernel_alone(encoding: KerpleBias, kernel: Kernel) -> None:
    distance = torch.arange(1000).float()
    mep = Mep.model_validate({"kernels": (kernel,)})
    assert bias_of(encoding, distance, 8).equal(bias_of(mep, distance, 8))


@pytest.mark.parametrize(("encoding", "kernel"), BIASES)
def test_distances_are_not_rounded_as_in_bf16(encoding: KerpleBias, kernel: Kernel) -> None:
    distance = torch.arange(256, 300).float()
    assert (bias_of(encoding, distance, 8).diff() < 0).all()
    rounded = encoding.of_distance(distance.bfloat16().float(), **weights_of(encoding, 8))
    assert (rounded.diff() == 0).any(), "otherwise this shows nothing"


def test_all_but_3log_have_the_weights_of_the_published_code() -> None:
    counts = {"kerple_log": 2, "kerple_power": 2, "kerple_3log": 3, "kerple_weighted": 4}
    for encoding in (KerpleLog(), KerplePower(), Kerple3Log(), KerpleWeighted()):
        declared = encoding.weights(8, torch.Generator().manual_seed(0))
        assert len(declared) == counts[encoding.name]
        assert all(weight.learned and weight.per_head and weight.value.shape == (8,) for weight in declared.values())
        assert not encoding.shared_by_layers


def test_weighted_starts_as_two_power_kernels_drawn_apart() -> None:
    declared = KerpleWeighted().weights(10_000, torch.Generator().manual_seed(0))
    raw = {name: weight.value for name, weight in declared.items()}
    drawn = {name: torch.nn.functional.softplus(raw[name]) for name in ("r1", "r3")}
    drawn |= {name: 2 * torch.sigmoid(raw[name]) for name in ("r2", "r4")}
    for name, top in (("r1", 1), ("r2", 2), ("r3", 1), ("r4", 2)):
        assert abs(drawn[name].mean() - top / 2) < 0.01 * top
        assert drawn[name].max() < top
    assert not raw["r1"].equal(raw["r3"])
    assert not raw["r2"].equal(raw["r4"])


def mixed(**weights: Tensor) -> tuple[Tensor, Tensor]:
    """Scores `[2, 3, 4, 9]` of the last four of nine positions, and what they become."""
    scores = torch.randn(2, 3, 4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    query = torch.zeros(2, 3, 4, 5).double()
    position = torch.arange(9).double()
    return scores, KerpleWeighted().of_scores(scores, query, position[5:], position, **weights)


def test_weighted_follows_its_formula() -> None:
    scores, new = mixed(r1=positive(R1), r2=exponent(R4), r3=positive(R3), r4=exponent(R4[::-1]))
    for head, (r1, r2, r3, r4) in enumerate(zip(R1, R4, R3, R4[::-1], strict=True)):
        for query in range(4):
            for key in range(query + 6):
                d = query + 5 - key
                expected = scores[:, head, query, key] * math.exp(-r3 * d**r4) - r1 * d**r2
                torch.testing.assert_close(new[:, head, query, key], expected, rtol=1e-12, atol=1e-14)


def test_weighted_without_weight_is_power() -> None:
    r1, r2 = positive(R1), exponent(R4)
    scores, new = mixed(r1=r1, r2=r2, r3=torch.full((3,), -1e4).double(), r4=exponent(R3))
    distance = (torch.arange(5, 9)[:, None] - torch.arange(9)).clamp(min=0).double()
    assert new.equal(scores + KerplePower().of_distance(distance, r1=r1, r2=r2))
