"""Plans: one scored set at every length, contexts as the protocol says, nothing cut short in silence."""

import re

import numpy as np
import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.evaluation.config import EvaluationConfig, ValidationConfig
from megatron_mep.evaluation.plan import Plan, cut_blocks, per_position, plans, sliding, span_ends, validation_plan


def contexts(plan: Plan) -> dict[int, int]:
    """From each scored position to the first position of its context, by loops; no position may come twice."""
    found: dict[int, int] = {}
    for start, num_scored in zip(plan.starts.tolist(), plan.num_scored.tolist(), strict=True):
        for position in range(start + plan.window - num_scored + 1, start + plan.window + 1):
            assert position not in found, f"position {position} is scored twice"
            found[position] = start
    return found


def planned(config: EvaluationConfig, train_length: int, num_stream_tokens: int) -> list[Plan]:
    return plans(config.resolved(train_length), num_stream_tokens)


def test_every_length_of_a_protocol_scores_the_same_positions() -> None:
    config = EvaluationConfig(lengths=(4, 6, 24), tokens=48, last_k=3, spans=5)
    by_protocol: dict[str, set[tuple[int, ...]]] = {}
    for plan in planned(config, train_length=6, num_stream_tokens=100):
        by_protocol.setdefault(plan.protocol, set()).add(tuple(sorted(contexts(plan))))
        assert plan.scored_positions.tolist() == sorted(contexts(plan))
    assert by_protocol["blocks"] == {tuple(range(1, 49))}
    assert len(by_protocol["last-k"]) == 1
    assert len(by_protocol["last-k"].pop()) == 15


def test_plans_come_with_their_controls() -> None:
    config = EvaluationConfig(lengths=(4, 12, 24), tokens=48, last_k=3, spans=5)
    names = [(plan.protocol, plan.length, plan.context, plan.window, plan.stride) for plan in planned(config, 6, 100)]
    assert names == [
        ("blocks", 4, "full", 4, 4),
        ("blocks", 12, "full", 12, 12),
        ("blocks", 12, "cut", 6, 3),
        ("blocks", 24, "full", 24, 24),
        ("blocks", 24, "cut", 6, 3),
        ("last-k", 4, "full", 4, None),
        ("last-k", 6, "full", 6, None),  # the control: not asked for, added
        ("last-k", 12, "full", 12, None),
        ("last-k", 24, "full", 24, None),
    ]
    without = EvaluationConfig(lengths=(4, 12, 24), tokens=48, last_k=3, spans=5, control=False)
    assert [(plan.protocol, plan.length) for plan in planned(without, 6, 100)] == [
        (protocol, length) for protocol in ("blocks", "last-k") for length in (4, 12, 24)
    ]


@pytest.mark.parametrize(("length", "window"), [(24, 6), (24, 5), (24, 7), (24, 23), (24, 2), (25, 3)])
def test_a_cut_context_is_never_longer_than_the_window_nor_older_than_the_block(length: int, window: int) -> None:
    found = contexts(cut_blocks(length, 2 * length, window))
    assert sorted(found) == list(range(1, 2 * length + 1))
    for position, start in found.items():
        block = (position - 1) // length * length
        context = position - start
        assert block <= start
        if position - block <= window:
            assert start == block, "the first chunk sees all of its block"
        else:
            assert window - window // 2 + 1 <= context <= window


@pytest.mark.parametrize("spare", [0, 1, 17])
def test_spans_lie_apart_and_reach_from_the_first_possible_end_to_the_last(spare: int) -> None:
    longest, k, spans = 32, 4, 6
    num_tokens = longest + (spans - 1) * k + 1 + spare
    ends = span_ends(longest, k, spans, num_tokens)
    assert (ends[0], ends[-1]) == (longest, num_tokens - 1)
    gaps = np.diff(ends)
    assert gaps.min() >= k
    assert gaps.max() - gaps.min() <= 1


def test_a_single_span_ends_at_the_longest_length() -> None:
    assert span_ends(32, 4, 1, 100).tolist() == [32]


def test_a_stream_that_just_suffices_is_used_and_one_token_less_is_refused() -> None:
    config = EvaluationConfig(lengths=(8, 16), tokens=48, last_k=4, spans=9)
    needed = 49  # blocks: 48 + 1; spans: 16 + 8 * 4 + 1
    assert planned(config, 8, needed)
    with pytest.raises(ConfigError) as caught:
        planned(config, 8, needed - 1)
    assert [mistake.key for mistake in caught.value.mistakes] == ["evaluation.tokens", "evaluation.spans"]
    for mistake in caught.value.mistakes:
        assert "49 tokens" in mistake.rule
        assert "this one has 48" in mistake.rule
    tokens, spans = (int(re.findall(r"\d+", mistake.remedy)[0]) for mistake in caught.value.mistakes)
    assert (tokens, spans) == (32, 8)
    assert planned(config.model_copy(update={"tokens": tokens, "spans": spans}), 8, needed - 1)


def test_a_stream_shorter_than_the_longest_length_asks_for_shorter_lengths() -> None:
    config = EvaluationConfig(lengths=(8, 16), tokens=16, last_k=4)
    with pytest.raises(ConfigError) as caught:
        planned(config, 8, 16)
    assert all("set the lengths to less than 16" in mistake.remedy for mistake in caught.value.mistakes)


def test_a_validation_stream_that_is_too_short_is_refused() -> None:
    config = ValidationConfig(tokens=64)
    assert validation_plan(config, 16, 65).scored_positions.tolist() == list(range(1, 65))
    with pytest.raises(ConfigError, match=r"validation\.tokens = 64: needs a stream of 65 tokens.*set it to 48"):
        validation_plan(config, 16, 64)


@pytest.mark.parametrize(("length", "stride"), [(8, 1), (8, 3), (8, 8), (7, 4), (24, 5), (25, 5)])
def test_sliding_windows_score_the_same_positions_with_no_less_context_than_the_stride_leaves(length, stride) -> None:
    tokens = 25
    found = contexts(sliding(length, tokens, stride))
    assert sorted(found) == list(range(1, tokens + 1))
    for position, start in found.items():
        if position <= length:
            assert start == 0, "the first window is scored whole"
        else:
            assert length - stride + 1 <= position - start <= length


def test_with_stride_one_every_label_has_all_context_that_the_length_allows() -> None:
    assert contexts(sliding(8, 25, 1)) == {position: max(0, position - 8) for position in range(1, 26)}


def test_the_control_of_sliding_windows_is_the_training_length() -> None:
    config = EvaluationConfig(lengths=(4, 12), tokens=50, protocols=("sliding",), stride=2)
    assert [(plan.length, plan.stride) for plan in planned(config, 6, 51)] == [(4, 2), (6, 2), (12, 2)]
    with pytest.raises(ConfigError, match="needs a stream of 51 tokens"):
        planned(config, 6, 50)


def test_contexts_of_a_plan_are_the_places_of_its_labels() -> None:
    for plan in (sliding(8, 25, 3), per_position(8, 24, 4), cut_blocks(24, 48, 6)):
        found = contexts(plan)
        assert plan.contexts.tolist() == [position - found[position] for position in sorted(found)]
