"""A model under tricks that divide pairs into regions: far beyond its training length, decoding, on tensor ranks."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.rope import Rope
from megatron_mep.extrapolation.blockwise import Blockwise
from megatron_mep.extrapolation.rerope import Rerope
from megatron_mep.extrapolation.self_extend import SelfExtend
from megatron_mep.extrapolation.sink_window import SinkWindow
from megatron_mep.model.cache import Cache
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.gradients import sum_over_tensor_ranks
from tests.encodings.examples import SharedSlope
from tests.extrapolation.tricked import ALL, MESA, MESAS, TRICKED, applied
from tests.support.distributed import joined, run
from tests.support.results import assert_alike, results_of, undivided_results
from tests.support.tiny import SEQ_LENGTH, VOCABULARY, model_config, samples
from tests.support.tolerance import assert_within_budget

LONG = 4 * SEQ_LENGTH


def built(encoding: Encoding, layout: ParallelConfig | None = None, **changes: Any) -> nn.Module:
    model = model_config(num_query_groups=2, **changes).model_copy(update={"encoding": encoding})
    return build_model(model, layout or ParallelConfig(), VOCABULARY, 3)


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(tokens, None, None, runtime_gather_output=True)


def decoded(model: nn.Module, tokens: Tensor, prompt: int) -> Tensor:
    """The logits with cached keys: a prompt, chunks of several, single steps."""
    context = Cache(len(tokens), tokens.size(1))
    context.materialize_only_last_token_logits = False
    logits = []
    with torch.no_grad():
        bounds = [0, prompt, prompt + 7, *range(prompt + 8, 32), *range(39, 42), *range(60, LONG + 1)]
        for start, stop in pairwise(bounds):
            part = tokens[:, start:stop]
            logits.append(model(part, None, None, inference_context=context, runtime_gather_output=True))
            context.sequence_len_offset += part.size(1)
    return torch.cat(logits, dim=1)


def test_a_model_reads_four_times_its_training_length():
    run(_reads_far, 1)


def _reads_far():
    joined()
    tokens = samples(0, 2, LONG)[:, :-1]
    for name, (encoding, _) in ALL.items():
        # the weights of a checkpoint have the same names and sizes, wherever they are
        trained, model = built(encoding), built(applied(name))
        model.load_state_dict(trained.state_dict())
        plain, far = logits_of(trained, tokens), logits_of(model, tokens)
        assert far.isfinite().all()
        assert not torch.allclose(far[:, -1], plain[:, -1], atol=1e-4), f"{name} is idle"
        if name in TRICKED:
            cached = decoded(model, tokens, 20)
            assert_within_budget(cached, far, logits_of(model.double(), tokens), name)


def test_within_the_training_length_a_trick_of_that_length_changes_nothing():
    run(_changes_nothing, 1)


def _changes_nothing():
    joined()
    tokens = samples(0, 2)[:, :-1]
    wide = [Rerope(window=SEQ_LENGTH), SelfExtend(window=SEQ_LENGTH), SinkWindow(), Blockwise(), MESA]
    for trick in wide:
        trained, model = built(Rope()), built(trick.applied(Rope(), SEQ_LENGTH))
        plain = logits_of(trained, tokens)
        assert_within_budget(logits_of(model, tokens), plain, logits_of(trained.double(), tokens), trick.name)


def test_mesa_decodes_as_it_says():
    run(_mesa_decodes, 1)


def _mesa_decodes():
    joined()
    tokens = samples(0, 2, LONG)[:, :-1]
    for name in MESAS:
        # keys of a single layer do not know what their tokens have seen
        model = built(applied(name), num_layers=1)
        cached = decoded(model.eval(), tokens, 20)
        for length in (20, 28, 41, LONG):
            whole = logits_of(model, tokens[:, :length])
            torch.testing.assert_close(cached[:, length - 1], whole[:, -1], rtol=0, atol=1e-5)
        deep = built(applied(name))
        cached, whole = decoded(deep.eval(), tokens, 20), logits_of(deep, tokens)
        torch.testing.assert_close(
            decoded(deep, tokens, SEQ_LENGTH - 7)[:, :SEQ_LENGTH],
            logits_of(deep, tokens[:, :SEQ_LENGTH]),
            rtol=0,
            atol=1e-5,
        )
        assert not torch.allclose(cached[:, 30], whole[:, 30], atol=1e-3)


def test_tensor_ranks_compute_alike(tmp_path: Path):
    expected = tmp_path / "expected.pt"
    run(_undivided, 1, expected)
    run(_divided, 2, expected)


DIVIDED = ("leaky rerope", "sink_window on mep", "mesa on alibi")


def _undivided(file: Path):
    here = joined()
    torch.save({name: undivided_results(built(applied(name)), here.tensor_group) for name in DIVIDED}, file)


def _divided(file: Path):
    here = joined(tensor=2)
    for name, expected in torch.load(file).items():
        model = built(applied(name), ParallelConfig(tensor=2))
        sum_over_tensor_ranks(model, here.tensor_group)
        assert_alike(name, results_of(model, here.tensor_group), *expected)


def test_layers_that_share_weights_still_do():
    run(_shared, 1)


def _shared():
    joined()
    encoding = SharedSlope(shared_by_layers=True)
    trained, model = built(encoding), built(SinkWindow(window=9).applied(encoding, SEQ_LENGTH))
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in trained.named_parameters()]
