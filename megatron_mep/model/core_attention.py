"""The seam: attention with a positional encoding, in the place of Megatron-core's own core attention."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from megatron_mep.attention.choose import Backend
from megatron_mep.attention.rotate import rotate
from megatron_mep.encodings.base import DistanceBias, Encoding, Rotation
from megatron_mep.parallel.tensor import EncodingWeights


class EncodedAttention(MegatronModule):
    """Causal attention of this rank's heads under an encoding; built by Megatron-core for each layer.

    Positions are counted from the keys' first, and queries stand at the end of the keys, whatever mask type Megatron
    asks for: with a cache of keys it passes `no_mask`, also for several queries. Keys are cached before they turn.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,  # noqa: ARG002
        attention_type: str,
        cp_comm_type: str | None = None,  # noqa: ARG002
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        *,
        encoding: Encoding,
        seed: int,
        training_backend: Backend,
        evaluation_backend: Backend,
    ) -> None:
        super().__init__(config=config)
        assert attention_type == "self", "a decoder has no cross attention"
        assert pg_collection is not None, "Megatron-core names the groups of a layer"
        tensor_group = pg_collection.tp
        self.layer_number = layer_number
        self.encoding = encoding
        self.scale = softmax_scale or config.kv_channels**-0.5
        self.training_backend, self.evaluation_backend = training_backend, evaluation_backend
        self.encoding_weights = EncodingWeights(
            encoding,
            config.num_attention_heads,
            layer_number,
            seed,
            tensor_group.rank(),
            tensor_group.size(),
            tensor_group,
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,  # noqa: ARG002
        attn_mask_type: AttnMaskType | None = None,  # noqa: ARG002
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Queries `[Q, B, H, D]`, keys and values `[K, B, G, D]` -> `[Q, B, H * D]`."""
        assert attention_bias is None, "the encoding is the only bias"
        assert packed_seq_params is None, "packed documents are not masked here"
        num_queries, num_keys = query.shape[0], key.shape[0]
        position = torch.arange(num_keys, dtype=torch.float32, device=query.device)
        weights = self.encoding_weights()
        bias = None
        if isinstance(self.encoding, Rotation):
            angle = self.encoding.angles(position, query.shape[-1])
            query, key = rotate(query, angle[num_keys - num_queries :]), rotate(key, angle)
        elif isinstance(self.encoding, DistanceBias):
            bias = self.encoding.of_distance(position, **weights)
        by_head = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        with self._dropout_stream():
            context = self.backend.attend(*by_head, bias, scale=self.scale)
        return context.permute(2, 0, 1, 3).flatten(2)

    @property
    def backend(self) -> Backend:
        """How attention is computed now: dropout acts in training alone."""
        return self.training_backend if self.training else self.evaluation_backend

    @property
    def in_force(self) -> str:
        """What acts in this layer, for the line at start-up."""
        return f"{self.encoding.name}, causal mask, {self.backend.name} attention ({self.backend.reason})"

    def _dropout_stream(self) -> AbstractContextManager[None]:
        """Where attention dropout draws: in the default stream all tensor ranks would drop alike, in other heads."""
        drops = self.training and self.config.attention_dropout > 0
        return get_cuda_rng_tracker().fork() if drops else nullcontext()
