"""Analyses of a model of which all is known, at many lengths."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from megatron_mep.analysis.config import AnalysisConfig
from megatron_mep.analysis.lengths import Observe, Ranks, analyses
from megatron_mep.analysis.rows import Analysis
from megatron_mep.attention.scoring import Scoring
from megatron_mep.config.errors import ConfigError
from megatron_mep.config.loader import validate
from megatron_mep.evaluation.perplexity import DataParallel
from tests.analysis.toy import NUM_HEADS, STREAM, uniform_mass, windowed

WEIGHTS = torch.ones(20, dtype=torch.float64)
CONFIG = AnalysisConfig(lengths=(8, 32), windows=5, batch_tokens=64)


def alone() -> Ranks:
    return Ranks(DataParallel(), lambda part: part, lambda: None)


def looked(observe: Observe, config: AnalysisConfig = CONFIG) -> list[Analysis]:
    return list(analyses(observe, STREAM, config, 8, alone()))


def test_the_field_is_the_window_where_the_length_holds_it():
    short, long = looked(windowed(WEIGHTS))
    assert (short.length, short.receptive_field, short.receptive_field_windows) == (8, 7, (7,) * 5)
    assert (long.length, long.receptive_field, long.receptive_field_windows) == (32, 19, (19,) * 5)
    expected = [min(end + 1, 20) / 20 for end in long.distance_ends]
    assert long.gradient_share == pytest.approx(expected)


def test_heads_and_layers_have_the_mass_of_uniform_attention():
    for found in looked(windowed(WEIGHTS)):
        by_distance = uniform_mass(found.length)
        starts = (0, *(end + 1 for end in found.distance_ends[:-1]))
        expected = [sum(by_distance[start : end + 1]) for start, end in zip(starts, found.distance_ends, strict=True)]
        mean = sum(distance * mass for distance, mass in enumerate(by_distance))
        assert [len(layer) for layer in found.attention_mass] == [NUM_HEADS] * 2
        for layer, distances in zip(found.attention_mass, found.attention_distance, strict=True):
            assert distances == pytest.approx([mean] * NUM_HEADS, rel=1e-6)
            for head in layer:
                assert head == pytest.approx(expected, rel=1e-6)
                assert sum(head) == pytest.approx(1, abs=1e-6)


def test_windows_of_every_length_end_at_the_same_tokens():
    seen: list[Tensor] = []

    def observe(tokens: Tensor, hear: Callable[[int, Scoring], None]) -> Tensor:
        seen.append(tokens)
        return windowed(WEIGHTS)(tokens, hear)

    short, long = looked(observe)
    assert short.scored_hash == long.scored_hash
    assert (short.num_windows, short.scored_tokens) == (5, 5)
    # of 8 tokens all at once; of 32, two at a time and one to fill up, which counts nowhere
    assert [tuple(tokens.shape) for tokens in seen] == [(5, 9), (2, 33), (2, 33), (2, 33)]
    torch.testing.assert_close(torch.cat(seen[1:])[:5, -9:], seen[0])
    assert seen[0][-1, -1] == STREAM[-1]


def test_what_is_not_finite_is_null():
    def observe(tokens: Tensor, hear: Callable[[int, Scoring], None]) -> Tensor:
        def broken(index: int, scoring: Scoring) -> None:
            hear(index, Scoring(scoring.encoding, scoring.query / 0, scoring.key, None, 1.0))

        norms = windowed(WEIGHTS)(tokens, broken)
        norms[0, -1] = torch.nan
        return norms

    for found in looked(observe):
        assert (found.attention_mass, found.attention_distance) == (None, None)
        assert (found.gradient_share, found.receptive_field, found.receptive_field_windows) == (None, None, None)


def test_a_stream_that_is_too_short_is_refused_with_what_fits():
    with pytest.raises(ConfigError, match=r"analysis\.lengths = \[396\]: must leave room .* 400 tokens for 5 windows"):
        looked(windowed(WEIGHTS), AnalysisConfig(lengths=(396,), windows=5))
    (found,) = looked(windowed(WEIGHTS), AnalysisConfig(lengths=(395,), windows=5))
    assert found.length == 395


def test_lengths_ascend():
    assert AnalysisConfig().lengths_of(128) == (128, 512, 2048)
    with pytest.raises(ConfigError, match=r"must ascend without repetition; write \[8, 32\]"):
        validate(AnalysisConfig, {"lengths": [32, 8, 8]})
