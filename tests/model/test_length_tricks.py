"""Length tricks in a model: they load its weights, act, decode with cached keys, and divide over tensor ranks."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megatron_mep.encodings.base import Encoding
from megatron_mep.extrapolation import extrapolated
from megatron_mep.model.cache import Cache
from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import in_force
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.run import run_of
from tests.support.distributed import joined, run
from tests.support.runs import run_tree
from tests.support.tiny import SEQ_LENGTH, VOCABULARY, model_config, samples
from tests.support.tolerance import assert_within_budget

SEED = 3
LONG = 4 * SEQ_LENGTH
Stated = tuple[str, list[dict[str, Any]]]
TRICKS: dict[str, Stated] = {
    "interpolated rope": ("rope", [{"name": "interpolation", "factor": 4}]),
    "interpolated fope": ("fope", [{"name": "interpolation", "factor": 4}]),
    "interpolated sinusoids": ("sinusoidal", [{"name": "interpolation", "factor": 4}]),
    "ntk": ("rope", [{"name": "ntk", "factor": 4}]),
    "ntk by parts": ("rope", [{"name": "ntk_by_parts", "factor": 4}]),
    "yarn, log n": ("rope", [{"name": "yarn", "factor": 4}, {"name": "log_n"}]),
    "base": ("rope", [{"name": "base", "base": 100}]),
    "log n on mep": ("mep", [{"name": "log_n"}]),
    "log n on a mix": ("cope", [{"name": "log_n"}]),
    "interpolated alibi": ("alibi", [{"name": "alibi_interpolation", "factor": 4}]),
    "clamped alibi": ("alibi", [{"name": "bias_clamp", "bound": -1}]),
    "window on alibi": ("alibi", [{"name": "window"}]),
    "window on fire": ("fire", [{"name": "window"}]),
    "window on rope": ("rope", [{"name": "window"}]),
    "window on sinusoids": ("sinusoidal", [{"name": "window"}]),
    "window on none": ("nope", [{"name": "window"}]),
}
DYNAMIC: Stated = ("rope", [{"name": "dynamic_ntk"}])


def encoding_of(stated: Stated) -> Encoding:
    name, tricks = stated
    whole = run_of(
        run_tree(model={"encoding": {"name": name}}, extrapolation=tricks, training={"seq_length": SEQ_LENGTH})
    )
    return extrapolated(whole.model.encoding, whole.extrapolation, SEQ_LENGTH)


def built(stated: Stated, tensor: int = 1, dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    model = model_config(num_query_groups=2, **changes).model_copy(update={"encoding": encoding_of(stated)})
    return build_model(model, ParallelConfig(tensor=tensor), VOCABULARY, SEED, dtype).to(dtype).eval()


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(tokens, None, None, runtime_gather_output=True)
    return logits


def cached_logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Of a prompt, a chunk, then single steps."""
    context = Cache(len(tokens), tokens.size(1))
    context.materialize_only_last_token_logits = False
    bounds = [0, 22, 40, *range(41, tokens.size(1) + 1)]
    parts = []
    with torch.no_grad():
        for start, stop in pairwise(bounds):
            parts.append(
                model(tokens[:, start:stop], None, None, inference_context=context, runtime_gather_output=True)
            )
            context.sequence_len_offset += stop - start
    return torch.cat(parts, dim=1)


def test_a_tricked_model_has_the_weights_of_the_trained_one_and_other_logits():
    run(_acts, 1)


def _acts():
    joined()
    tokens = samples(0, 2, LONG)
    for name, stated in {**TRICKS, "dynamic ntk": DYNAMIC}.items():
        trained, tricked = built((stated[0], [])), built(stated)
        tricked.load_state_dict(trained.state_dict())
        plain, changed = logits_of(trained, tokens), logits_of(tricked, tokens)
        assert changed.isfinite().all(), name
        assert not changed.allclose(plain, rtol=0, atol=1e-5), f"{name} is idle"
        if stated[1][0]["name"] in ("log_n", "window", "dynamic_ntk"):
            short = logits_of(tricked, tokens[:, :SEQ_LENGTH])
            torch.testing.assert_close(short, logits_of(trained, tokens[:, :SEQ_LENGTH]), rtol=1e-4, atol=1e-6)


def test_cached_keys_give_the_logits_of_a_full_forward():
    run(_cached, 1)


def _cached():
    joined()
    tokens = samples(0, 2, LONG)
    for name, stated in TRICKS.items():
        model = built(stated)
        cached, plain = cached_logits_of(model, tokens), logits_of(model, tokens)
        assert_within_budget(cached, plain, logits_of(built(stated, dtype=torch.float64), tokens), name)


def test_dynamic_ntk_turns_cached_keys_anew_at_every_length():
    run(_dynamic, 1)


def _dynamic():
    joined()
    tokens = samples(0, 2, LONG)
    # in a single layer the last token's logits read no more than keys and queries that turn by the present length
    model = built(DYNAMIC, num_layers=1)
    torch.testing.assert_close(
        cached_logits_of(model, tokens)[:, -1], logits_of(model, tokens)[:, -1], rtol=1e-4, atol=1e-5
    )
    assert not cached_logits_of(model, tokens)[:, 30].allclose(logits_of(model, tokens)[:, 30], rtol=0, atol=1e-5)


def test_two_tensor_ranks_give_the_logits_of_one(tmp_path: Path):
    run(_undivided, 1, tmp_path / "logits.pt")
    run(_divided, 2, tmp_path / "logits.pt")


def _undivided(file: Path):
    joined()
    tokens = samples(0, 2, LONG)
    results = {}
    for name, stated in TRICKS.items():
        plain, exact = (built(stated, dtype=dtype) for dtype in (torch.float32, torch.float64))
        results[name] = logits_of(plain, tokens), logits_of(exact, tokens)
    torch.save(results, file)


def _divided(file: Path):
    joined(tensor=2)
    tokens = samples(0, 2, LONG)
    for name, expected in torch.load(file).items():
        assert_within_budget(logits_of(built(TRICKS[name], tensor=2), tokens), *expected, name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("yarn, log n", "layers 1-2: rope + yarn + log_n, causal mask, plain attention"),
        ("window on rope", "layers 1-2: rope + window, causal mask, "),
        ("base", "layers 1-2: rope + base (base 100, critical dimension 2 of 8, of period 20), causal mask"),
    ],
)
def test_the_line_at_start_up_names_what_acts(name: str, told: str):
    run(_told, 1, name, told)


def _told(name: str, told: str):
    joined()
    assert in_force(built(TRICKS[name])).startswith(told), in_force(built(TRICKS[name]))
