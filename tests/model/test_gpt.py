from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megatron_mep.config.errors import ConfigError
from megatron_mep.model.cache import Cache
from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.gradients import sum_over_tensor_ranks
from megatron_mep.parallel.groups import seed_streams
from tests.support.distributed import joined, run
from tests.support.results import Results, assert_alike, losses_of, results_of, undivided_results
from tests.support.tiny import LEARNED, SEQ_LENGTH, VOCABULARY, model_config, samples
from tests.support.tolerance import assert_exact_equal, assert_within_budget

SEED = 3
ENCODINGS: dict[str, dict[str, Any]] = {
    "mep": {"name": "mep"},
    "learned mep": LEARNED,
    "alibi": {"name": "alibi"},
    "rope": {"name": "rope"},
    "nope": {"name": "nope"},
    "fire": {"name": "tests.encodings.examples:Fire", "threshold": 8.5},
    "fox": {"name": "tests.encodings.examples:Fox"},
    "cable": {"name": "tests.encodings.examples:Cable"},
    "cope": {"name": "tests.encodings.examples:Cope"},
    "shared by layers": {"name": "tests.encodings.examples:SharedSlope", "shared_by_layers": True},
    "added to embeddings": {"name": "tests.encodings.examples:Table"},
    "placed by tokens": {"name": "tests.encodings.examples:Segments"},
    "scores of pairs": {"name": "tests.encodings.examples:Halved"},
}
MODELS: dict[str, dict[str, Any]] = {
    **{name: {"encoding": encoding} for name, encoding in ENCODINGS.items()},
    "learned mep but in layer 1": {"encoding": LEARNED, "nope_layers": [1]},
    "scores of pairs, 2 groups": {"encoding": ENCODINGS["scores of pairs"], "num_query_groups": 2},
    "learned mep, 2 groups": {"encoding": LEARNED, "num_query_groups": 2},
    "learned mep, 1 group": {"encoding": LEARNED, "num_query_groups": 1},
    "gelu, layernorm, biases, tied": {
        "activation": "gelu",
        "norm": "layernorm",
        "linear_bias": True,
        "tied_embeddings": True,
    },
}


def built(parallel: ParallelConfig | None = None, recompute: Any = "none", **changes: Any) -> nn.Module:
    return build_model(
        model_config(**changes), parallel or ParallelConfig(), VOCABULARY, SEED, torch.float32, recompute
    )


def test_every_layout_starts_and_computes_alike(tmp_path: Path):
    expected = tmp_path / "expected.pt"
    run(_undivided, 1, expected)
    run(_divided, 2, expected, ParallelConfig(tensor=2))
    run(_divided, 4, expected, ParallelConfig(tensor=4, sequence=True))


def _undivided(file: Path):
    here = joined()
    expected: dict[str, tuple[Results, Results]] = {}
    for name, changes in MODELS.items():
        model = built(**changes)
        expected[name] = undivided_results(model, here.tensor_group)
    torch.save(expected, file)


def _divided(file: Path, layout: ParallelConfig):
    here = joined(tensor=layout.tensor)
    expected = torch.load(file)
    for name, changes in MODELS.items():
        model = built(layout, **changes)
        sum_over_tensor_ranks(model, here.tensor_group)
        assert_alike(f"{name} at {layout}", results_of(model, here.tensor_group), *expected[name])


def test_runs_that_differ_in_the_encoding_alone_start_alike():
    run(_starts, 1)


def _starts():
    joined()
    models = [built(encoding=encoding) for encoding in ENCODINGS.values()]
    weights = [dict(model.named_parameters()) for model in models]
    shared = [name for name in weights[0] if "encoding_weights" not in name]
    assert len(shared) == 2 * 6 + 3
    for others in weights[1:]:
        for name in shared:
            assert_exact_equal(others[name], weights[0][name], name)
    anew = dict(build_model(model_config(), ParallelConfig(), VOCABULARY, SEED + 1).named_parameters())
    assert not torch.equal(anew[shared[0]], weights[0][shared[0]])
    assert len({float(losses_of(model, samples(0, 1)).mean()) for model in models}) == len(models), (
        "an encoding is idle"
    )


def test_recomputed_activations_change_nothing():
    run(_recompute, 2)


def _recompute():
    here = joined(tensor=2)
    layout = ParallelConfig(tensor=2, sequence=True)
    dropping: tuple[dict[str, Any], ...] = (
        {"encoding": LEARNED, "hidden_dropout": 0.1},
        {"encoding": {"name": "rope"}, "attention_dropout": 0.1},
        *({"encoding": ENCODINGS[name], "hidden_dropout": 0.1} for name in ("fire", "cable", "cope")),
    )
    # how often core attention and feed-forward run in each of the two layers
    runs = {"none": (1, 1), "selective": (2, 1), "full": (2, 2)}
    for changes in dropping:
        found = {}
        for recompute, (attention_runs, feed_forward_runs) in runs.items():
            model = built(layout, recompute, **changes)
            sum_over_tensor_ranks(model, here.tensor_group)
            calls: Counter[str] = Counter()
            for module in model.modules():
                module.register_forward_hook(lambda module, *_, calls=calls: calls.update([type(module).__name__]))
            seed_streams(SEED)
            found[recompute] = [losses := losses_of(model, samples(0, 2))]
            losses.mean().backward()
            found[recompute] += [parameter.grad for parameter in model.parameters()]
            assert (calls["EncodedAttention"], calls["MLP"]) == (2 * attention_runs, 2 * feed_forward_runs)
        assert not torch.equal(found["none"][0], losses_of(model, samples(0, 2))), f"{changes} drop nothing"
        for recompute in ("selective", "full"):
            for actual, expected in zip(found[recompute], found["none"], strict=True):
                assert_exact_equal(actual, expected, recompute)


def test_tensor_ranks_drop_different_attention_weights():
    run(_attention_dropout, 2)


def _attention_dropout():
    here = joined(tensor=2)
    model = built(ParallelConfig(tensor=2), encoding={"name": "nope"}, attention_dropout=0.5)
    attention = next(encoded_layers(model))
    heads = torch.randn(3, SEQ_LENGTH, 1, 2, 8, generator=torch.Generator().manual_seed(0))

    def on_all_ranks() -> list[Tensor]:
        mine = attention(*heads)
        parts = [torch.empty_like(mine) for _ in range(2)]
        distributed.all_gather(parts, mine.detach(), group=here.tensor_group)
        return parts

    first, second = on_all_ranks()
    assert not torch.equal(first, second)
    attention.eval()
    first, second = on_all_ranks()
    assert_exact_equal(first, second)


def test_cached_keys_give_the_logits_of_a_full_forward():
    run(_cached, 2, 2, ENCODINGS)
    run(_cached, 1, 1, {"dape": {"name": "tests.encodings.examples:Dape"}})


def _cached(tensor: int, encodings: dict[str, dict[str, Any]]):
    joined(tensor=tensor)
    tokens = samples(0, 2)
    for name, encoding in encodings.items():
        model = built(ParallelConfig(tensor=tensor), encoding=encoding, num_query_groups=2).eval()
        context = Cache(len(tokens), SEQ_LENGTH)
        context.materialize_only_last_token_logits = False
        with torch.no_grad():
            # a prompt, a chunk, single steps
            cached = [_next(model, tokens[:, start:stop], context) for start, stop in ((0, 6), (6, 10))]
            cached += [_next(model, tokens[:, step : step + 1], context) for step in range(10, SEQ_LENGTH)]
            plain = model(tokens[:, :-1], None, None, runtime_gather_output=True)
            exact = model.double()(tokens[:, :-1], None, None, runtime_gather_output=True)
        assert_within_budget(torch.cat(cached, dim=1), plain, exact, name)


def _next(model: nn.Module, tokens: Tensor, context: Cache) -> Tensor:
    logits = model(tokens, None, None, inference_context=context, runtime_gather_output=True)
    context.sequence_len_offset += tokens.size(1)
    return logits


LONG = 1024
"""Positions at which a matrix of scores is the largest tensor by far: 4 MiB for each head."""


def test_no_tensor_grows_with_the_square_of_the_length():
    run(_memory, 1)


def _memory():
    joined()
    for name, encoding in ENCODINGS.items():
        assert _largest_allocation(encoding=encoding) < 4 * LONG**2, name
    # the recorder does see such a tensor
    assert _largest_allocation(encoding={"name": "mep"}, attention_backend="reference") >= 4 * 4 * LONG**2


def _largest_allocation(**changes: Any) -> int:
    """Bytes of the largest tensor of a forward and backward pass."""
    model = built(**changes)
    with Recorder() as recorder:
        losses_of(model, samples(0, 1, LONG)).mean().backward()
    return recorder.largest


class Recorder(TorchDispatchMode):
    """Keeps the size of the largest memory that any operation's result lies in."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        sizes = [result.untyped_storage().nbytes() for result in tree_leaves(results) if isinstance(result, Tensor)]
        self.largest = max([self.largest, *sizes])
        return results


@pytest.mark.parametrize("name", ["mep", "alibi"])
def test_dropout_that_no_backend_can_apply_is_refused(name: str):
    run(_dropout, 1, name)


def _dropout(name: str):
    joined()
    with pytest.raises(ConfigError, match=f"model.attention_dropout = 0.1: must be 0 in training under {name}"):
        built(encoding={"name": name}, attention_dropout=0.1)
