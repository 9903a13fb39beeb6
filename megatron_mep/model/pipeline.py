"""Micro-batches on their way through pipeline stages, by Megatron-core's 1F1B schedules.

"PipeDream-Flush", or interleaved where stages have several chunks of layers: Narayanan et al., "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM" (arXiv:2104.04473), section 2.2.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import tee
from math import gcd
from typing import Any

import torch
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel.schedules import (
    forward_backward_pipelining_with_interleaving,
    forward_backward_pipelining_without_interleaving,
)
from torch import Tensor, distributed, nn

from megatron_mep.model.encoded_gpt import EncodedGPT
from megatron_mep.model.interleaved import StageModel
from megatron_mep.parallel.groups import Groups

Batch = tuple[Tensor, int | None]
"""The tokens `[B, S + 1]` of a micro-batch, and the number of its first sample where there is one."""
Forward = Callable[..., Tensor]
"""The model, or an engine around it."""

IN_FLIGHT = 4
"""Micro-batches for each stage into which a batch to be scored is divided: more shorten the time that stages wait."""


@dataclass(frozen=True)
class Pipeline:
    """The stages of a model, of which this rank has one. All methods are collective over the model's ranks."""

    model: StageModel
    groups: Groups

    def train(self, forward: Forward, batches: Iterator[Batch], num_batches: int, size: tuple[int, int]) -> Tensor:
        """Forward and backward passes of `num_batches` micro-batches; their mean loss, on every stage.

        Gradients are those of the mean loss. `size` is that of a micro-batch: samples and tokens of each, `(B, S)`.
        """
        losses = self._run(forward, batches, num_batches, size, _mean_loss)
        total = torch.stack(losses).mean() if losses else torch.zeros((), device=self.groups.device)
        return self._from_last(total)

    def score(self, tokens: Tensor) -> Tensor:
        """The negative log-likelihoods `[B, S]` of all tokens but the first of `[B, S + 1]`, fp32, on every stage."""
        num_samples, length = tokens.shape[0], tokens.shape[1] - 1
        parts = list(tokens.chunk(gcd(num_samples, IN_FLIGHT * self.groups.pipeline_size)))
        if len(self.model.chunks) > 1:
            # the interleaved schedule takes as many micro-batches in turn as there are stages: the last one fills up
            parts += parts[-1:] * (-len(parts) % self.groups.pipeline_size)
        with torch.no_grad():
            scored = self._run(
                self.model,
                ((part, None) for part in parts),
                len(parts),
                (len(parts[0]), length),
                _as_it_is,
                forward_only=True,
                collect_non_loss_data=True,
            )
        whole = (
            torch.cat(scored).float()[:num_samples]
            if scored
            else tokens.new_empty((num_samples, length), dtype=torch.float32)
        )
        return self._from_last(whole)

    def _run(
        self,
        forward: Forward,
        batches: Iterator[Batch],
        num_batches: int,
        size: tuple[int, int],
        of_output: Callable[..., Any],
        **options: Any,
    ) -> list[Tensor]:
        """What `of_output` makes of the last stage's outputs, there."""

        def step(batches: Iterator[Batch], chunk: _Chunk) -> tuple[Tensor, Callable[..., Any]]:
            tokens, first_sample = next(batches)
            return chunk(tokens, first_sample), of_output

        chunks = self._chunks(forward)
        schedule = (
            forward_backward_pipelining_with_interleaving
            if len(chunks) > 1
            else forward_backward_pipelining_without_interleaving
        )
        results: list[Tensor] = schedule(
            forward_step_func=step,
            data_iterator=list(tee(batches, len(chunks))),
            model=chunks,
            num_microbatches=num_batches,
            micro_batch_size=size[0],
            seq_length=size[1],
            **options,
        )
        return results

    def _chunks(self, forward: Forward) -> "list[_Chunk]":
        if len(self.model.chunks) == 1:
            return [_Chunk(self.model.chunks[0], forward)]
        return [_Chunk(chunk, partial(forward, chunk=number)) for number, chunk in enumerate(self.model.chunks)]

    def _from_last(self, result: Tensor) -> Tensor:
        group = self.groups.pipeline_group
        distributed.broadcast(result, distributed.get_global_rank(group, group.size() - 1), group)
        return result


class _Chunk(nn.Module):
    """What Megatron-core's schedules ask of a model."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, model: EncodedGPT, forward: Forward) -> None:
        super().__init__()
        self._model, self._forward = model, forward
        self.config = copy(model.config)
        # the schedules take the width of what passes between stages from here
        self.config.hidden_size = model.width

    def set_input_tensor(self, tensor: list[Tensor | None]) -> None:
        """Takes what the stage before has computed."""
        self._model.set_input_tensor(tensor)

    def forward(self, tokens: Tensor, first_sample: int | None) -> Tensor:
        """What this part makes of it: hidden states, or losses `[B, S]` of the model's last one."""
        return self._forward(tokens[:, :-1], None, None, labels=tokens[:, 1:], first_sample=first_sample)


def _mean_loss(losses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is differentiated, as a sum over one token, since it is a mean already; and what is kept."""
    loss = losses.mean()
    return loss, torch.ones((), dtype=torch.int, device=loss.device), loss.detach().clone()


def _as_it_is(output: Tensor, non_loss_data: bool) -> Tensor:
    assert non_loss_data, "scores are no loss"
    return output
