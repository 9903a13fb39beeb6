"""Sliding windows of stride 1 over a real model, against each token predicted by itself from all its context."""

import numpy as np
import pytest
import torch

from megatron_mep.evaluation.config import EvaluationConfig
from megatron_mep.evaluation.suite import evaluate_lengths
from megatron_mep.model.gpt import build_model
from megatron_mep.model.score import scorer
from megatron_mep.parallel.config import ParallelConfig
from tests.support import distributed
from tests.support.tiny import VOCABULARY, model_config

TOKENS = 40


@pytest.mark.parametrize("encoding", ["mep", "rope", "fire"])
def test_stride_one_equals_brute_force(encoding: str) -> None:
    distributed.run(_compares, 1, encoding)


def _compares(encoding: str) -> None:
    groups = distributed.joined()
    model = build_model(model_config(encoding={"name": encoding}), ParallelConfig(), VOCABULARY, seed=0)
    score = scorer(model, groups)
    stream = np.random.default_rng(0).integers(0, VOCABULARY, TOKENS + 1)
    config = EvaluationConfig(lengths=(8, 32), tokens=TOKENS, protocols=("sliding",), stride=1, batch_tokens=64)
    for row in evaluate_lengths(score, stream, config, 8):
        losses = [
            # the last label of a row alone
            score(torch.from_numpy(stream[max(0, position - row.length) : position + 1])[None])[0, -1].double()
            for position in range(1, TOKENS + 1)
        ]
        assert row.nll == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
        assert row.scored_tokens == TOKENS
