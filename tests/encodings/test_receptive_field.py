"""The theoretical receptive field of biases, as worked out for eight heads before this code was written."""

import math

import pytest
import torch

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias
from megatron_mep.encodings.kernels import Exponential, Gaussian
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.receptive_field import receptive_field
from megatron_mep.encodings.series import GaussianBias, Series, Type1, Type2
from tests.encodings.oracle import weights_of

FIELDS: dict[str, tuple[DistanceBias, list[int]]] = {
    "alibi": (Alibi(), [9, 18, 36, 73, 147, 294, 589, 1178]),
    "gaussian": (GaussianBias(), [3, 7, 14, 29, 58, 116, 233, 466]),
    "gaussian of the slope itself": (
        Mep(kernels=(Gaussian(squared_slope=False),)),
        [2, 3, 5, 7, 10, 14, 20, 29],
    ),
    "mep": (Mep(), [7, 15, 31, 63, 127, 254, 508, 1016]),
    "mep of the slope itself": (
        Mep(kernels=(Exponential(), Gaussian(squared_slope=False))),
        [8, 16, 34, 70, 142, 287, 579, 1164],
    ),
    "mep, width 4": (Mep(kernels=(Exponential(), Gaussian(width=4))), [14, 28, 56, 113, 226, 452, 903, 1807]),
    "mep, width 8": (Mep(kernels=(Exponential(), Gaussian(width=8))), [28, 57, 114, 229, 458, 916, 1832, 3663]),
    "mep, width 16": (Mep(kernels=(Exponential(), Gaussian(width=16))), [57, 115, 231, 462, 924, 1848, 3696, 7392]),
    "type1": (Type1(), [110, 236, 489, 996, 2007, 4014, 7968, 15645]),
    "type2": (Type2(), [18, 38, 76, 153, 307, 616, 1233, 2466]),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_those_of_the_table(name: str) -> None:
    encoding, expected = FIELDS[name]
    # the tail of an inverse square is long: 1 % of its sum lies beyond 63 / m
    num_distances = 400_000 if name == "type1" else 50_000
    assert receptive_field(encoding, weights_of(encoding, 8), num_distances).tolist() == expected


@pytest.mark.parametrize("epsilon", [0.5, 0.1, 0.01, 1e-6])
def test_alibis_field_is_that_of_a_geometric_series(epsilon: float) -> None:
    found = receptive_field(Alibi(), weights_of(Alibi(), 8), 10_000, epsilon).tolist()
    # sum_{d <= j} r^d is 1 - r^(j + 1) of the whole, and r^(j + 1) = exp(-m (j + 1))
    assert found == [math.floor(math.log(1 / epsilon) * 2**head) for head in range(1, 9)]


def test_a_divergent_series_has_as_much_of_a_field_as_is_looked_at() -> None:
    near, far = (receptive_field(Series(), weights_of(Series(), 8), length) for length in (10_000, 100_000))
    assert (near > 0.85 * 10_000).all()
    assert (far > 0.85 * 100_000).all()


def test_weights_decide() -> None:
    # the slopes of the last two of eight heads, as a rank of four would hold them
    last = {name: weight[6:] for name, weight in weights_of(Alibi(), 8).items()}
    assert receptive_field(Alibi(), last, 10_000).tolist() == [589, 1178]
    assert receptive_field(Alibi(), {"slope": torch.tensor([1.0])}, 10).tolist() == [4]
