"""What is seen of a model is what it computes: attention weights under every kind of encoding, and gradients."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from megatron_mep.analysis.attention_mass import AttentionMass
from megatron_mep.attention.backend import Attend
from megatron_mep.attention.scoring import Scoring
from megatron_mep.encodings.base import DistanceBias
from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.model.gpt import build_model
from megatron_mep.model.observe import observer_of, of_all_heads
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.groups import Groups
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, VOCABULARY, model_config, samples
from tests.support.tolerance import assert_within_budget

LENGTH = 70
"""More than the queries of a chunk, and beyond the training length."""
WINDOW = 6


class Windowed(DistanceBias):
    """Excludes the keys from distance `WINDOW` on."""

    source: ClassVar[str] = "none"
    formula: ClassVar[str] = "-inf from a distance on"

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:  # noqa: ARG002
        return torch.where(distance < WINDOW, 0.0, -torch.inf)[None]


# one of each kind: tests/every_encoding has all of them
ENCODINGS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ("alibi", "fire", "fox", "nope", "rope", "sinusoidal", "xpos", "tape")},
    "cope": {"name": "cope", "num_positions": 6},
    "learned mep": LEARNED,
    "segments": {"name": "bipe_rope", "ends": [3, 50, 201]},
    "window": {"name": f"{__name__}:{Windowed.__name__}"},
}


def built(name: str, layout: ParallelConfig | None = None, **changes: Any) -> nn.Module:
    changes = {"encoding": ENCODINGS[name], "num_query_groups": 2, **changes}
    return build_model(model_config(**changes), layout or ParallelConfig(), VOCABULARY, seed=3).eval()


def ignored(*_: object) -> None:
    """What a layer tells goes unheard."""


@pytest.mark.parametrize("name", ENCODINGS)
def test_weights_make_of_the_values_what_attention_made(name: str):
    run(_remade, 1, name)


def _remade(name: str):
    here = joined()
    assert_remade(built(name), here, samples(0, 2, LENGTH))


def assert_remade(model: nn.Module, here: Groups, tokens: Tensor) -> None:
    """The weights that each layer tells of, times the values, are what its attention puts out."""
    heard: list[Scoring] = []
    compared: list[int] = []
    for index, layer in enumerate(encoded_layers(model)):
        compare = _comparing(layer.training_backend.attend, heard, index, compared)
        layer.training_backend = replace(layer.training_backend, attend=compare)
    norms = observer_of(model, here)(tokens, lambda _, scoring: heard.append(scoring))
    assert compared == [0, 1]
    assert bool(norms.isfinite().all())
    assert bool((norms[:, -1] > 0).all())


def _comparing(attend: Attend, heard: list[Scoring], index: int, compared: list[int]) -> Attend:
    """Attention whose output is compared with that of the weights."""

    def comparing(query: Tensor, key: Tensor, value: Tensor, acting: Any, **options: Any) -> Tensor:
        output = attend(query, key, value, acting, **options)
        of_heads = value.detach().repeat_interleave(query.size(1) // key.size(1), dim=1)
        remade = [weights @ of_heads[:, :, tile.keys] for tile, weights in heard[index].weights()]
        assert len(remade) == 2, "in chunks"
        torch.testing.assert_close(torch.cat(remade, dim=2), output.detach(), rtol=1e-5, atol=1e-6)
        compared.append(index)
        return output

    return comparing


def test_gradients_end_where_the_windows_of_all_layers_do():
    run(_ends, 1)


def _ends():
    here = joined()
    norms = observer_of(built("window"), here)(samples(0, 2, 30), ignored)
    # the last token sees WINDOW tokens in the last layer, each of which has seen as many in the first
    reach = 2 * (WINDOW - 1) + 1
    assert (norms[:, :-reach] == 0).all()
    assert (norms[:, -reach:] > 0).all()


@pytest.mark.parametrize("name", ["learned mep", "fox", "rope", "sinusoidal"])
def test_gradients_are_those_of_finite_differences(name: str):
    run(_differences, 1, name)


def _differences(name: str):
    here = joined()
    model, tokens, place, step = built(name).double(), samples(0, 1, 12), 7, 1e-6
    norms = observer_of(model, here)(tokens, ignored)
    # each sample has another number of the embedding at `place` moved, the second half of them backwards
    moves = step * torch.cat((torch.eye(32), -torch.eye(32))).double()
    moved = torch.zeros(12, 64, 32, dtype=torch.float64)
    moved[place] = moves
    model.embedding.register_forward_hook(lambda *seen: seen[-1] + moved)
    with torch.no_grad():
        logits = model(tokens[:, :-1].expand(64, -1), None, None, runtime_gather_output=True)[:, -1]
    forwards, backwards = -logits.log_softmax(-1)[:, tokens[0, -1]].view(2, 32)
    slopes = (forwards - backwards) / (2 * step)
    # the loss itself is computed in fp32
    torch.testing.assert_close(norms[0, place], slopes.norm(), rtol=1e-5, atol=0)


def test_a_model_is_left_as_it_was():
    run(_left, 1)


def _left():
    here = joined()
    model, tokens = built("learned mep"), samples(0, 1)
    next(model.parameters()).requires_grad_(False)
    asked = [parameter.requires_grad for parameter in model.parameters()]
    observer_of(model, here)(tokens, ignored)
    assert [parameter.requires_grad for parameter in model.parameters()] == asked
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module.training for module in model.modules())
    assert {layer.observer for layer in encoded_layers(model)} == {None}
    assert model(tokens[:, :-1], None, None, labels=tokens[:, 1:]).requires_grad


@pytest.mark.parametrize(("name", "tied"), [("alibi", True), ("fox", False), ("rope", True)])
def test_tensor_ranks_see_together_what_one_sees(name: str, tied: bool, tmp_path: Path):
    run(_seen, 1, name, tied, 1, tmp_path)
    run(_seen, 2, name, tied, 2, tmp_path)


def _seen(name: str, tied: bool, tensor: int, folder: Path):
    here = joined(tensor=tensor)
    model, file = built(name, ParallelConfig(tensor=tensor), tied_embeddings=tied), folder / "alone.pt"

    def seen(model: nn.Module) -> tuple[Tensor, Tensor]:
        mass = AttentionMass(LENGTH)
        counts = torch.tensor([True, True])
        norms = observer_of(model, here)(samples(0, 2, LENGTH), lambda index, each: mass.add(index, each, counts))
        return norms, of_all_heads(here)(mass.total)

    found = seen(model)
    if tensor == 1:
        torch.save((found, seen(model.double())), file)
        return
    for what, actual, plain, exact in zip(("norms", "mass"), found, *torch.load(file), strict=True):
        assert actual.dtype == torch.float64, "added up of what was computed in fp32"
        assert_within_budget(actual.float(), plain.float(), exact, f"{name}: {what}")
