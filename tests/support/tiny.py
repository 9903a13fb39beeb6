"""A decoder, a training section and tokens that are small enough to train in a test."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megatron_mep.model.config import ModelConfig
from megatron_mep.training.config import TrainingConfig
from tests.support.tolerance import assert_exact_equal

VOCABULARY = 300
"""Padded to 384."""
SEQ_LENGTH = 16
LAYOUT_RTOL = 1e-5
"""How far an fp32 loss may be from that of another layout: what the project promises."""

LEARNED = {"name": "mep", "kernels": [{"kernel": "log"}, {"kernel": "power"}]}
"""An encoding with four learned weights of each head, drawn at random."""


def model_config(**changes: Any) -> ModelConfig:
    """Two layers of width 32 with 4 heads."""
    return ModelConfig.model_validate({"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, **changes})


def training_config(**changes: Any) -> TrainingConfig:
    """Five steps of 4 sequences in fp32, clipped at half of the first gradient's norm or so."""
    optimizer = {"learning_rate": 1e-2, "clip_grad_norm": 0.8, **changes.pop("optimizer", {})}
    tree = {"seq_length": SEQ_LENGTH, "steps": 5, "global_batch_size": 4, "precision": "fp32", "optimizer": optimizer}
    return TrainingConfig.model_validate({**tree, **changes})


def sample(number: int, length: int = SEQ_LENGTH) -> Tensor:
    """The tokens `[length + 1]` of one sample of an endless corpus."""
    return torch.randint(VOCABULARY, (length + 1,), generator=torch.Generator().manual_seed(number))


def samples(first: int, size: int, length: int = SEQ_LENGTH) -> Tensor:
    """Consecutive samples, `[size, length + 1]`."""
    return torch.stack([sample(number, length) for number in range(first, first + size)])


def micro_batches_of(size: int) -> Callable[[int], Tensor]:
    """What a training step asks for its micro-batches of `size` samples."""
    return lambda first: samples(first, size)


def whole(parts: Sequence[Tensor], parameter: nn.Parameter) -> Tensor:
    """A weight, or its gradient, from its parts: Megatron marks the dim, and stride 2 where gate and up are stacked."""
    if not getattr(parameter, "tensor_model_parallel", False):
        for part in parts[1:]:
            assert_exact_equal(part, parts[0], "what tensor ranks hold alike")
        return parts[0]
    dim, stride = parameter.partition_dim, parameter.partition_stride
    pieces = zip(*(part.chunk(stride, dim) for part in parts), strict=True)
    return torch.cat([piece for row in pieces for piece in row], dim)
