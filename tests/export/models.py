"""Models to export, built with weights that tell differences."""

import torch

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.extrapolation import extrapolated
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.encoded_gpt import EncodedGPT
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from tests.export.cases import Model
from tests.support.tiny import VOCABULARY, model_config

TRAIN_LENGTH = 12
SPREAD = 4.0
"""Weights are so many times as large as those that training starts from: logits of some size tell more."""


def built(case: Model, vocabulary_size: int = VOCABULARY, seed: int = 5) -> tuple[EncodedGPT, ModelConfig]:
    """The model under its tricks, none of whose weights is zero, and what it was trained with."""
    trained = model_config(**{"num_attention_heads": 8, "hidden_size": 64, **case.options}, encoding=case.encoding)
    assert not trained.encoding.mistakes(LayerSizes(8, 64, 8)), case.name
    evaluated = trained.model_copy(update={"encoding": extrapolated(case.encoding, case.tricks, TRAIN_LENGTH)})
    model = build_model(evaluated, ParallelConfig(), vocabulary_size, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(SPREAD if parameter.dim() > 1 and "encoding" not in name else 1).add_(0.1 * noise)
    return model, trained
