"""T5's buckets, against logarithms of fifty digits."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from pydantic import ValidationError

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.t5 import T5
from tests.encodings.oracle import fp64

SETTINGS = [(32, 128), (32, 256), (48, 81), (10, 405), (5, 50), (6, 96), (3, 2), (2, 2)]


def bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    single = num_buckets // 2
    if distance < single:
        return distance
    with localcontext() as context:
        context.prec = 50
        part = (Decimal(distance) / single).ln() / (Decimal(max_distance) / single).ln()
        # a whole number may come out below itself in the last digit
        return min(num_buckets - 1, single + math.floor(part * (num_buckets - single) + Decimal("1e-40")))


@pytest.mark.parametrize(("num_buckets", "max_distance"), SETTINGS)
def test_buckets_are_those_of_the_published_formula(num_buckets: int, max_distance: int) -> None:
    encoding = T5(num_buckets=num_buckets, max_distance=max_distance)
    distances = range(2 * max_distance)
    expected = [bucket(distance, num_buckets, max_distance) for distance in distances]
    for dtype in (torch.float32, torch.float64):
        assert encoding.bucket(torch.tensor(distances, dtype=dtype)).tolist() == expected


def test_a_rounded_logarithm_would_miss_a_bucket() -> None:
    # log(54 / 24) / log(81 / 24) is 2/3, and 24 times that 16, but not in fp32
    encoding = T5(num_buckets=48, max_distance=81)
    assert encoding.bucket(fp64([53, 54])).tolist() == [24 + 15, 24 + 16]
    rounded = torch.tensor(54 / 24).log() / math.log(81 / 24) * 24
    assert rounded < 16, "otherwise this shows nothing"


def test_published_buckets_worked_by_hand() -> None:
    starts = {0: 0, 1: 1, 15: 15, 16: 16, 18: 16, 19: 17, 32: 21, 64: 26, 112: 30, 113: 31, 128: 31, 131_071: 31}
    assert T5().bucket(torch.tensor(list(starts)).float()).tolist() == list(starts.values())


def test_bias_is_the_heads_number_of_the_bucket() -> None:
    table = torch.randn(3, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    distance = torch.tensor([[0.0, 3.0, 40.0], [127.0, 128.0, 131_071.0]], dtype=torch.float64)
    bias = T5().of_distance(distance, table=table)
    assert bias.shape == (3, 2, 3)
    for head in range(3):
        expected = [[float(table[head, bucket(int(d), 32, 128)]) for d in row] for row in distance.tolist()]
        assert bias[head].tolist() == expected


def test_bias_is_multiplied_by_the_root_of_the_head_size_where_asked() -> None:
    sizes = LayerSizes(num_heads=4, hidden_size=36, head_size=9)
    plain, scaled = (
        {name: weight.value for name, weight in encoding.layer_weights(sizes, torch.Generator().manual_seed(1)).items()}
        for encoding in (T5(), T5(scaled=True))
    )
    distance = torch.arange(200.0)
    torch.testing.assert_close(T5(scaled=True).of_distance(distance, **scaled), 3 * T5().of_distance(distance, **plain))
    constant = T5(scaled=True).layer_weights(sizes, torch.Generator())["scale"]
    assert not constant.learned
    assert not constant.per_head


def test_each_distance_adds_to_the_gradient_of_its_bucket() -> None:
    table = torch.zeros(2, 32, requires_grad=True)
    T5().of_distance(torch.arange(300.0), table=table).sum().backward()
    assert table.grad is not None
    buckets = [bucket(distance, 32, 128) for distance in range(300)]
    counts = [buckets.count(number) for number in range(32)]
    assert table.grad.tolist() == [counts, counts]


def test_numbers_start_with_the_variance_of_gpt_neox() -> None:
    table = T5(num_buckets=4096, max_distance=8192).weights(64, torch.Generator().manual_seed(0))["table"].value
    assert table.shape == (64, 4096)
    assert abs(table.std() / math.sqrt(2 / (4096 + 64)) - 1) < 0.01


def test_the_farthest_distance_exceeds_those_with_a_bucket_each() -> None:
    with pytest.raises(
        ValidationError, match=r"must exceed the 16 distances .* set it to 17 or more, or num_buckets to 31"
    ):
        T5(max_distance=16)
    T5(max_distance=16, num_buckets=31)
