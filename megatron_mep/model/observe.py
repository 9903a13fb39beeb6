"""What can be seen of a whole model at work: what its scores are made of, and which tokens its last output hangs on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from megatron_mep.attention.scoring import Scoring
from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.model.encoded_gpt import EncodedGPT
from megatron_mep.parallel.groups import Groups

Hear = Callable[[int, Scoring], None]
"""Told the index of a layer, from 0, and what its scores are made of on this rank's heads."""


def observer_of(model: EncodedGPT, groups: Groups) -> Callable[[Tensor, Hear], Tensor]:
    """A pass over tokens `[B, S + 1]` and back: `[B, S]` fp64 on the CPU, and every layer tells `hear` of its scores.

    The numbers are the norms of the gradient of the last token's negative log-likelihood with respect to the embedding
    of each token before it. Collective over the tensor ranks, which give the same tokens and get the same norms.
    """
    assert not model.config.sequence_parallel, "the embeddings of all tokens are on every rank"
    assert groups.context_size == groups.pipeline_size == 1, "sequences and layers are whole"

    def observe(tokens: Tensor, hear: Hear) -> Tensor:
        tokens = tokens.to(groups.device)
        with _differentiable(model), _heard(model, hear), _embeddings(model) as embedded:
            losses = model(tokens[:, :-1], None, None, labels=tokens[:, 1:])
            # samples do not know of each other
            (gradient,) = torch.autograd.grad(losses[:, -1].sum(), embedded)
        return torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float64).T.cpu()

    return observe


def of_all_heads(groups: Groups) -> Callable[[Tensor], Tensor]:
    """From something of this tensor rank's heads, `[layers, H / T, ...]` on the CPU, to that of all H heads.

    Collective over the tensor ranks.
    """

    def whole(part: Tensor) -> Tensor:
        part = part.to(groups.device).contiguous()
        parts = [torch.empty_like(part) for _ in range(groups.tensor_size)]
        distributed.all_gather(parts, part, group=groups.tensor_group)
        return torch.cat(parts, dim=1).cpu()

    return whole


@contextmanager
def _differentiable(model: EncodedGPT) -> Iterator[None]:
    """The model as it is evaluated, by the attention that has gradients; its weights get none."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval().requires_grad_(False)
    for layer in encoded_layers(model):
        assert layer.config.attention_dropout == 0, "dropout is left out where a model is evaluated"
        layer.train()
    try:
        with torch.enable_grad():
            yield
    finally:
        model.eval()
        for parameter in learned:
            parameter.requires_grad_(True)


@contextmanager
def _heard(model: EncodedGPT, hear: Hear) -> Iterator[None]:
    """Every layer tells of its scores."""
    layers = list(encoded_layers(model))
    for index, layer in enumerate(layers):
        layer.observer = partial(hear, index)
    try:
        yield
    finally:
        for layer in layers:
            layer.observer = None


@contextmanager
def _embeddings(model: EncodedGPT) -> Iterator[list[Tensor]]:
    """The embeddings `[S, B, hidden_size]` of each forward pass, from which gradients go no further back."""
    embedded: list[Tensor] = []

    def begin_here(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:  # noqa: ARG001
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    handle = model.embedding.register_forward_hook(begin_here)
    try:
        yield embedded
    finally:
        handle.remove()
