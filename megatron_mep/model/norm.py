"""The norms of a layer, as Megatron-core builds them."""

import torch
from megatron.core.transformer.transformer_config import TransformerConfig


class Norm:
    """torch's RMSNorm or LayerNorm, as the configuration says, allowed under sequence parallelism.

    Megatron-core's own wrapper of torch's norms refuses sequence parallelism where neither Apex nor TransformerEngine
    is installed. All that it takes is the mark below: the norm sees a part of the sequence on each tensor rank, so its
    gradients must be summed over them. A class, for Megatron-core takes a function as the module itself.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> torch.nn.Module:  # type: ignore[misc]
        """The norm's module."""
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return norm
