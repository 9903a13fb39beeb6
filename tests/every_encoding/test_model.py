"""What holds of a model under every encoding: at every tensor size, with recomputed activations, and from a cache."""

from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core import dist_checkpointing
from torch import Tensor, nn

from megatron_mep.checkpoint.state import template_of, weights
from megatron_mep.checkpoint.writer import write_in_this_process
from megatron_mep.model.cache import Cache
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.gradients import sum_over_tensor_ranks
from megatron_mep.parallel.groups import seed_streams
from tests.every_encoding.case import Case
from tests.support.distributed import joined, run
from tests.support.results import assert_alike, losses_of, results_of, undivided_results
from tests.support.tiny import SEQ_LENGTH, VOCABULARY, model_config, samples
from tests.support.tolerance import assert_exact_equal, assert_within_budget

HEAD_SIZE = 4
SAVED, OTHER = 3, 4
"""Seeds: what a checkpoint is loaded into starts from other weights."""


def built(case: Case, layout: ParallelConfig, seed: int = SAVED, recompute: Any = "none", **changes: Any) -> nn.Module:
    heads = case.heads[0]
    model = model_config(encoding=case.encoding, num_attention_heads=heads, hidden_size=heads * HEAD_SIZE, **changes)
    return build_model(model, layout, VOCABULARY, seed, torch.float32, recompute)


def test_one_checkpoint_computes_alike_at_every_tensor_size(case: Case, tmp_path: Path) -> None:
    run(_whole, 1, case, tmp_path)
    for size in case.tensor_sizes:
        if size > 1:
            run(_divided, size, case, tmp_path, ParallelConfig(tensor=size, sequence=size > 2))
            run(_put_together, 1, case, tmp_path, size)


def _whole(case: Case, folder: Path) -> None:
    here = joined()
    model = built(case, ParallelConfig())
    _save(model, folder / "1")
    torch.save(undivided_results(model, here.tensor_group), folder / "expected.pt")


def _divided(case: Case, folder: Path, layout: ParallelConfig) -> None:
    here = joined(tensor=layout.tensor, sequence=layout.sequence)
    model = built(case, layout, OTHER)
    _load(model, folder / "1")
    sum_over_tensor_ranks(model, here.tensor_group)
    found = results_of(model, here.tensor_group)
    assert_alike(f"{layout}", found, *torch.load(folder / "expected.pt"))
    _save(model, folder / str(layout.tensor))


def _put_together(case: Case, folder: Path, size: int) -> None:
    joined()
    model, expected = built(case, ParallelConfig(), OTHER), built(case, ParallelConfig())
    _load(model, folder / str(size))
    for name, weight in expected.state_dict().items():
        if isinstance(weight, Tensor):
            assert_exact_equal(model.state_dict()[name], weight, f"{name}, saved at tensor size {size}")


def _save(model: nn.Module, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    write_in_this_process()
    dist_checkpointing.save(weights(template_of(model), lambda parameter: parameter.detach()), str(folder))


def _load(model: nn.Module, folder: Path) -> None:
    loaded = dist_checkpointing.load(weights(template_of(model), lambda parameter: parameter.detach()), str(folder))
    model.load_state_dict(loaded, strict=False)


def test_recomputed_activations_change_no_gradient(case: Case) -> None:
    run(_recompute, 1, case)


def _recompute(case: Case) -> None:
    joined()
    found: dict[str, list[Tensor | None]] = {}
    for recompute in ("none", "selective", "full"):
        model = built(case, ParallelConfig(), recompute=recompute, hidden_dropout=0.1)
        seed_streams(1)
        losses = losses_of(model, samples(0, 2))
        losses.mean().backward()
        found[recompute] = [losses.detach(), *(parameter.grad for parameter in model.parameters())]
    for recompute in ("selective", "full"):
        for actual, expected in zip(found[recompute], found["none"], strict=True):
            assert (actual is None) == (expected is None)
            if actual is not None and expected is not None:
                assert_exact_equal(actual, expected, recompute)


@pytest.mark.cases_that.with_args(lambda case: case.decodes)
def test_cached_keys_give_the_logits_of_a_full_forward(case: Case) -> None:
    run(_cached, 1, case)


def _cached(case: Case) -> None:
    joined()
    tokens = samples(0, 2)
    model = built(case, ParallelConfig()).eval()
    cache = Cache(len(tokens), SEQ_LENGTH)
    cache.materialize_only_last_token_logits = False
    parts = []
    with torch.no_grad():
        # a prompt, a chunk, single steps
        for start, stop in ((0, 6), (6, 10), *((step, step + 1) for step in range(10, SEQ_LENGTH))):
            parts.append(model(tokens[:, start:stop], None, None, inference_context=cache, runtime_gather_output=True))
            cache.sequence_len_offset += stop - start
        plain = model(tokens[:, :-1], None, None, runtime_gather_output=True)
        exact = model.double()(tokens[:, :-1], None, None, runtime_gather_output=True)
    assert_within_budget(torch.cat(parts, dim=1), plain, exact, case.name)
