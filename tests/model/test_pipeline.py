"""Scores and start-up lines of a model whose layers pipeline stages share, in one chunk each and interleaved."""

from pathlib import Path

import pytest
import torch
from torch import distributed

from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import in_force, learned_encoding_weights
from megatron_mep.model.score import scorer
from megatron_mep.parallel.config import ParallelConfig
from tests.support.distributed import joined, run
from tests.support.tiny import LAYOUT_RTOL, LEARNED, VOCABULARY, model_config, samples

BATCHES = (1, 2, 3, 5)
"""Samples of a batch: fewer than stages, as many, and not a multiple."""
CONFIG = model_config(num_layers=4, encoding=LEARNED, nope_layers=[2])


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_stages_score_and_tell_what_one_rank_does(tmp_path: Path, num_chunks: int) -> None:
    run(_whole, 1, tmp_path)
    run(_in_stages, 2, tmp_path, num_chunks)


def _whole(folder: Path) -> None:
    here = joined()
    model = build_model(CONFIG, ParallelConfig(), VOCABULARY, seed=0)
    score = scorer(model, here)
    torch.save([score(samples(0, size)) for size in BATCHES], folder / "scores.pt")
    told = {"in force": in_force(model), "learned": sorted(learned_encoding_weights(model))}
    torch.save(told, folder / "told.pt")


def _in_stages(folder: Path, num_chunks: int) -> None:
    parallel = ParallelConfig(pipeline=2, virtual_pipeline=num_chunks)
    here = joined(**parallel.model_dump())
    model = build_model(CONFIG, parallel, VOCABULARY, seed=0)
    score = scorer(model, here)
    for size, expected in zip(BATCHES, torch.load(folder / "scores.pt"), strict=True):
        torch.testing.assert_close(score(samples(0, size)), expected, rtol=LAYOUT_RTOL, atol=0)
    told = torch.load(folder / "told.pt")
    assert in_force(model) == told["in force"]
    names: list[list[str]] = [[], []]
    distributed.all_gather_object(names, list(learned_encoding_weights(model)))
    assert sorted(names[0] + names[1]) == told["learned"]
