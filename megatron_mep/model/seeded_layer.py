"""A decoder layer whose initial weights are its own, whichever layers are drawn before it on this rank."""

from typing import Any

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer


class SeededLayer(TransformerLayer):
    """Megatron-core's layer, drawn alike at every division of the layers over pipeline stages."""

    def __init__(self, *args: Any, seed: int, **options: Any) -> None:
        torch.manual_seed(seed)
        super().__init__(*args, **options)
