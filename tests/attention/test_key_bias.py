"""Attention with a bias by running sums: output and all gradients against one query at a time, and its precision."""

from functools import partial

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.key_bias import key_bias_attention, running_sum_of
from megatron_mep.attention.reference import reference_attention
from tests.attention.oracle import SCALE, Shape
from tests.attention.row_oracle import (
    assert_blind_to_the_future,
    assert_correct,
    assert_fp64_correct,
    attend_by_row,
    largest_storage,
    random_leaves,
    results_of,
)
from tests.support.tolerance import assert_exact_equal, assert_within_budget

ROWS = 8

both = pytest.mark.parametrize("gain", [True, False], ids=["gain", "no gain"])


def leaves_of(
    shape: Shape, dtype: torch.dtype = torch.float32, gain: bool = True, start: float = 0.0
) -> dict[str, Tensor]:
    """The sums of half of the heads rise, those of the others go both ways; all begin at `start`."""
    generator = torch.Generator().manual_seed(3)
    increments = torch.randn(shape.batch, shape.heads, shape.keys, generator=generator, dtype=torch.float64)
    increments[:, ::2] = increments[:, ::2].abs()
    others = {"running_sum": start + increments.cumsum(-1)}
    if gain:
        others["gain"] = torch.rand(shape.batch, shape.heads, shape.queries, generator=generator) + 0.5
    return random_leaves(shape, dtype, **others)


def attend(leaves: dict[str, Tensor], num_rows: int = ROWS) -> Tensor:
    inputs = (leaves[name] for name in ("query", "key", "value", "running_sum"))
    return key_bias_attention(*inputs, leaves.get("gain"), scale=SCALE, num_rows=num_rows)


def plainly(leaves: dict[str, Tensor]) -> Tensor:
    sums, num_queries = leaves["running_sum"], leaves["query"].size(2)
    bias = (sums[:, :, None, :] - sums[:, :, -num_queries:, None]).to(
        torch.promote_types(leaves["query"].dtype, torch.float32)
    )
    if "gain" in leaves:
        bias = leaves["gain"][..., None] * bias
    return reference_attention(leaves["query"], leaves["key"], leaves["value"], bias, scale=SCALE)


def by_row(leaves: dict[str, Tensor]) -> Tensor:
    first = leaves["key"].size(2) - leaves["query"].size(2)

    def biased(sample: int, position: int, scores: Tensor) -> Tensor:
        new = []
        for head, row in enumerate(scores):
            sums = leaves["running_sum"][sample, head]
            gain = leaves["gain"][sample, head, position - first] if "gain" in leaves else 1
            new.append(torch.stack([score + gain * (sums[key] - sums[position]) for key, score in enumerate(row)]))
        return torch.stack(new)

    return attend_by_row(leaves["query"], leaves["key"], leaves["value"], biased)


@both
@pytest.mark.parametrize("length", [1, 8, 9, 20])
def test_matches_one_query_at_a_time(length, gain):
    assert_correct(leaves_of(Shape(2, 2, 2, length, length), gain=gain), attend, plainly, by_row)


@both
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("queries", [1, 11])
def test_heads_share_keys_and_queries_stand_at_the_end_of_them(queries, groups, gain):
    assert_correct(leaves_of(Shape(2, 4, groups, queries, 12), gain=gain), attend, plainly, by_row)


@both
def test_fp64_keeps_its_precision(gain):
    assert_fp64_correct(leaves_of(Shape(2, 4, 2, 12, 15), gain=gain), attend, by_row)


@both
def test_bf16_beyond_256_positions(gain):
    assert_correct(leaves_of(Shape(1, 2, 1, 3, 300), torch.bfloat16, gain), attend, plainly, by_row)


@both
@pytest.mark.parametrize("start", [1e4, 1e8])
def test_large_sums_lose_nothing(start, gain):
    shape = Shape(1, 2, 2, 20, 20)
    assert_correct(leaves_of(shape, gain=gain, start=start), attend, plainly, by_row)
    # and are told from small ones by what fp64 lost of them alone
    small, large = (results_of(attend, leaves_of(shape, gain=gain, start=at)) for at in (0.0, start))
    for name, expected in small.items():
        torch.testing.assert_close(large[name], expected, rtol=1e-5, atol=1e-6, msg=name)


def test_fp32_sums_are_rounded_once():
    leaves = leaves_of(Shape(1, 2, 2, 20, 20), start=1e3)
    leaves["running_sum"] = leaves["running_sum"].detach().float().requires_grad_()
    assert_correct(leaves, attend, plainly, by_row)


def test_equal_increments_are_a_bias_by_distance():
    leaves = leaves_of(Shape(1, 4, 2, 40, 50), gain=False)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
    leaves["running_sum"] = running_sum_of(slopes[None, :, None].expand(1, 4, 50))
    position = torch.arange(50)
    bias = -slopes[:, None, None] * (position[10:, None] - position).clamp(min=0)
    inputs = [leaves[name] for name in ("query", "key", "value")]
    plain = reference_attention(*inputs, bias.float(), scale=SCALE)
    exact = reference_attention(*(tensor.double() for tensor in inputs), bias, scale=SCALE)
    assert_within_budget(attend(leaves).detach(), plain.detach(), exact.detach())


@both
@pytest.mark.parametrize("position", [0, 6, 7, 8, 38])
def test_no_output_depends_on_the_future(position, gain):
    leaves = leaves_of(Shape(2, 4, 2, 40, 40), gain=gain)
    assert_blind_to_the_future(attend, leaves, position)
    later = {name: tensor.detach().clone() for name, tensor in leaves.items()}
    later["running_sum"][:, :, position + 1 :] += 1000
    with torch.no_grad():
        assert_exact_equal(attend(later)[:, :, : position + 1], attend(leaves)[:, :, : position + 1])


@both
def test_a_shift_of_all_sums_has_no_gradient(gain):
    gradient = results_of(attend, leaves_of(Shape(2, 4, 2, 40, 40), gain=gain))["gradient of running_sum"]
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(2, 4, dtype=torch.float64), rtol=0, atol=1e-5)
    assert gradient.abs().max() > 0.1


@both
def test_memory_is_linear_in_the_length(gain):
    leaves = leaves_of(Shape(1, 4, 2, 1024, 1024), gain=gain)
    # scores of a chunk, all heads
    assert largest_storage(partial(attend, num_rows=64), leaves) <= 4 * 64 * 1024


def test_keys_are_not_repeated_for_the_heads_of_a_group():
    leaves = leaves_of(Shape(1, 16, 1, 1, 2048))
    assert largest_storage(attend, leaves) < 16 * leaves["key"].numel() / 2


def test_sums_include_the_token_itself_and_go_on_where_they_ended():
    increments = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
    assert_exact_equal(running_sum_of(increments), torch.tensor([[[1.0, 3.0, 7.0, 15.0]]], dtype=torch.float64))
    before = running_sum_of(increments[..., :3])
    assert_exact_equal(running_sum_of(increments[..., 3:], before[..., -1]), torch.tensor([[[15.0]]]).double())


def test_sums_are_as_exact_as_fp64():
    increments = torch.full((1, 1, 100_000), 0.1)
    exact = 100_000 * increments[0, 0, 0].double()
    torch.testing.assert_close(running_sum_of(increments)[0, 0, -1], exact, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"running_sum": torch.zeros(1, 4, 4)}, r"running sum \(1, 4, 4\), not \(1, 4, 5\)"),
        ({"running_sum": torch.zeros(1, 4, 5, dtype=torch.bfloat16)}, "fp32 or wider, not torch.bfloat16"),
        ({"gain": torch.zeros(1, 4, 5)}, r"gain of every query, not \(1, 4, 5\)"),
        ({"query": torch.zeros(1, 4, 6, 8), "gain": torch.zeros(1, 4, 6)}, "6 queries cannot be the last of 5"),
    ],
)
def test_broken_calls_are_told(change, broken):
    with pytest.raises(AssertionError, match=broken):
        attend(leaves_of(Shape(1, 4, 2, 3, 5)) | change)


def test_one_chunk_or_many_are_the_same():
    leaves = leaves_of(Shape(1, 4, 2, 40, 40))
    one, many = (results_of(partial(attend, num_rows=rows), leaves) for rows in (64, 7))
    for name, expected in one.items():
        torch.testing.assert_close(many[name], expected, rtol=1e-5, atol=1e-6, msg=name)
