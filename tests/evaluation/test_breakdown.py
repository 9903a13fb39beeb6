"""Sliding windows, and what rows say of documents and positions, against loops that redo it token by token."""

import math

import pytest
import torch
from torch import Tensor

from megatron_mep.evaluation.config import EvaluationConfig, ValidationConfig
from megatron_mep.evaluation.rows import Measurement
from megatron_mep.evaluation.suite import evaluate_lengths, validate
from tests.evaluation.test_suite import STREAM, TOKENS, first_of_context, measured, oracle
from tests.evaluation.toy import nll_of, score

SPAN_ENDS = (12, 34, 56, 78, 100)
"""Of five spans in that stream, where the longest length is 12."""


@pytest.mark.parametrize("stride", [1, 4])
def test_sliding_windows_equal_the_loops(stride: int) -> None:
    config = EvaluationConfig(lengths=(6, 12), tokens=TOKENS, protocols=("sliding",), stride=stride, batch_tokens=30)
    tokens = STREAM.tolist()
    for row in evaluate_lengths(score, STREAM, config, 6):
        losses = []
        for position in range(1, TOKENS + 1):
            # windows end at the length, and from there on every stride; the last one at the end
            end = row.length if position <= row.length else position + (row.length - position) % stride
            start = min(end, TOKENS) - row.length
            losses.append(nll_of(tokens[start:position], tokens[position]))
        assert row.nll == math.fsum(losses) / TOKENS, "sums of eighths are exact"
        assert row.scored_hash == measured()["blocks", 6, "full"].scored_hash


def test_losses_by_position_are_means_over_windows() -> None:
    config = EvaluationConfig(lengths=(6, 12), tokens=TOKENS, protocols=("per-position",), position_bins=4)
    short, long = evaluate_lengths(score, STREAM, config, 6)
    assert (short.position_ends, long.position_ends) == ((1, 3, 4, 6), (3, 6, 9, 12))
    tokens = STREAM.tolist()
    for end, found in zip(long.position_ends, long.position_nll, strict=True):
        places = [(start, start + place) for start in range(0, TOKENS, 12) for place in range(end - 2, end + 1)]
        losses = [nll_of(tokens[start:position], tokens[position]) for start, position in places]
        assert found == pytest.approx(math.fsum(losses) / len(losses), rel=1e-12)
    assert long.nll == oracle("blocks", 12, "full"), "they are the windows of blocks"


def test_validation_tells_losses_in_ranges_of_doubling_length() -> None:
    row = validate(score, STREAM, ValidationConfig(tokens=TOKENS), 6, batch_tokens=30)
    assert row.position_ends == (1, 2, 4, 6)
    config = EvaluationConfig(lengths=(6,), tokens=TOKENS, protocols=("per-position",), position_bins=6)
    (single,) = evaluate_lengths(score, STREAM, config, 6)
    first, second, *rest = single.position_nll
    pairs = [sum(pair) / 2 for pair in (rest[:2], rest[2:])]
    assert row.position_nll == pytest.approx((first, second, *pairs), rel=1e-12)


def test_a_loss_that_is_not_finite_spoils_its_own_range_of_positions_alone() -> None:
    def broken(tokens: Tensor) -> Tensor:
        nll = torch.ones(tokens.shape[0], tokens.shape[1] - 1)
        nll[:, 4] = torch.nan
        return nll

    config = EvaluationConfig(lengths=(6,), tokens=TOKENS, protocols=("per-position",), position_bins=3)
    (row,) = evaluate_lengths(broken, STREAM, config, 6, end_of_document=0)
    assert row.position_nll == (1.0, 1.0, None)
    assert (row.document_nll, row.perplexity_low) == (None, None)
    assert sum(row.document_tokens) == TOKENS


def test_losses_of_documents_are_sums_up_to_each_end() -> None:
    end = int(STREAM[24])
    config = EvaluationConfig(lengths=(6, 12), tokens=TOKENS, protocols=("blocks", "last-k"), last_k=3, spans=5)
    for row in evaluate_lengths(score, STREAM, config, 6, end_of_document=end):
        tokens = STREAM.tolist()
        by_document: dict[int, list[float]] = {}
        for position in scored_positions_of(row):
            first = first_of(row, position)
            # an end belongs to the document that it ends
            document = tokens[:position].count(end)
            by_document.setdefault(document, []).append(nll_of(tokens[first:position], tokens[position]))
        assert len(by_document) > 1
        assert row.document_tokens == tuple(map(len, by_document.values()))
        assert row.document_nll == tuple(map(math.fsum, by_document.values()))
        assert row.perplexity_low < row.perplexity < row.perplexity_high


def first_of(row: Measurement, position: int) -> int:
    """Where the context of a scored position begins, with 12 as the longest length."""
    if row.protocol == "blocks":
        return first_of_context("blocks", row.length, row.context == "cut", position)
    return next(end for end in SPAN_ENDS if position <= end) - row.length


def scored_positions_of(row: Measurement) -> list[int]:
    if row.protocol == "blocks":
        return list(range(1, TOKENS + 1))
    return [end - back for end in SPAN_ENDS for back in (2, 1, 0)]
