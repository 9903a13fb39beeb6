"""The work of tensor ranks, against windows found and pairs counted one by one in fp64."""

import math

import pytest
import torch
from torch import Tensor

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias, Weight
from megatron_mep.encodings.kernels import Exponential, Gaussian
from megatron_mep.encodings.mep import Mep
from megatron_mep.model.balance import balanced, largest_score_at_unit_rms, tensor_imbalance

LARGEST_SCORE, EPSILON = 0.5, 1e-2


def kept(bias: list[float]) -> int:
    """Pairs of a causal sequence inside the smallest window that drops no more than epsilon of a row."""
    mass = [math.exp(one) for one in bias]
    window = next(
        width
        for width in range(1, len(mass) + 1)
        if math.exp(2 * LARGEST_SCORE) * math.fsum(mass[width:]) <= EPSILON * math.fsum(mass[:width])
    )
    return sum(query - key < window for query in range(len(mass)) for key in range(query + 1))


def alibi(exponent: float, length: int) -> list[float]:
    return [-(2.0**exponent) * distance for distance in range(length)]


def mep(exponent: float, length: int) -> list[float]:
    slope = 2.0**exponent
    return [math.log((math.exp(-slope * d) + math.exp(-((slope * d) ** 2))) / 2) for d in range(length)]


@pytest.mark.parametrize("tensor_size", [2, 4, 8])
@pytest.mark.parametrize(("encoding", "bias"), [(Alibi(), alibi), (Mep(), mep)], ids=["alibi", "mep"])
def test_imbalance_is_that_of_pairs_counted_one_by_one(encoding, bias, tensor_size: int):
    found = tensor_imbalance(encoding, 8, tensor_size, (20, 60, 200), LARGEST_SCORE, EPSILON)
    assert list(found) == [20, 60, 200]
    for length, ratio in found.items():
        pairs = [kept(bias(-head, length)) for head in range(1, 9)]
        share = 8 // tensor_size
        ranks = [sum(pairs[first : first + share]) for first in range(0, 8, share)]
        assert ratio == pytest.approx(max(ranks) / (sum(pairs) / tensor_size), rel=1e-12)
        assert ratio > 1.02


def test_lengths_at_which_nothing_is_left_out_are_missing():
    flat = Mep(kernels=(Exponential(width=256),))
    # at 40 tokens the window of the steepest slope, 1/512, is the whole sequence
    assert list(tensor_imbalance(flat, 8, 2, (40, 20_000), 8.0, 1e-6)) == [20_000]
    assert tensor_imbalance(Alibi(), 8, 2, (10_000,), 8.0, 0.0) == {}


class Shared(DistanceBias):
    """-m_h d times a factor that all heads share."""

    name: str = "shared"

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:  # noqa: ARG002
        slope = 2.0 ** -torch.arange(1.0, num_heads + 1)
        return {"slope": Weight(slope / 3), "factor": Weight(torch.tensor([3.0]), per_head=False)}

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:
        return -weights["factor"] * weights["slope"][:, None] * distance


def test_weights_that_heads_share_are_whole_on_every_rank():
    shared, own = (tensor_imbalance(one, 8, 4, (300,), LARGEST_SCORE, EPSILON) for one in (Shared(), Alibi()))
    assert shared == pytest.approx(own, rel=1e-3)


@pytest.mark.parametrize(
    ("num_heads", "tensor_size", "length", "published", "evened"),
    [(16, 2, 2048, 1.68, 1.00), (16, 4, 16_384, 2.90, 1.26), (12, 3, 2048, 2.19, 1.14), (8, 4, 16_384, 2.88, 1.85)],
)
def test_balanced_slopes_even_out_ranks(num_heads, tensor_size, length, published, evened):
    layout = (num_heads, tensor_size, (length,), 8.0, 1e-6)
    assert tensor_imbalance(Mep(), *layout)[length] == pytest.approx(published, abs=0.01)
    assert tensor_imbalance(Mep(order="balanced"), *layout)[length] == pytest.approx(evened, abs=0.01)


@pytest.mark.parametrize("encoding", [Alibi(), Mep(kernels=(Gaussian(width=3.0),))])
def test_what_has_an_order_can_be_balanced(encoding):
    other = balanced(encoding)
    assert other == type(encoding).model_validate({**encoding.model_dump(), "order": "balanced"})
    assert balanced(other) is None


def test_what_has_no_order_cannot():
    assert balanced(Shared()) is None


def test_scores_of_vectors_of_unit_rms_are_bounded_by_the_root_of_the_head_size():
    ones = torch.ones(64, dtype=torch.float64)
    assert largest_score_at_unit_rms(64) == float(ones @ ones) / math.sqrt(64)
