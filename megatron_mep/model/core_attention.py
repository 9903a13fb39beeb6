"""The seam: attention with a positional encoding, in the place of Megatron-core's own core attention."""

from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from megatron_mep.attention.choose import choose
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
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        *,
        encoding: Encoding,
        seed: int,
        backend: str,
    ) -> None:
        super().__init__(config=config)
        assert attention_type == "self", "a decoder has no cross attention"
        assert pg_collection is not None, "Megatron-core names the groups of a layer"
        tensor_group = pg_collection.tp
        self.layer_number = layer_number
        self.encoding = encoding
        self.scale = softmax_scale or config.kv_channels**-0.5
        self.encoding_weights = EncodingWeights(
            encoding,
            config.num_attention_heads,
            layer_number,
            seed,
            tensor_group.rank(),
            tensor_group.size(),
            tensor_group,
        )
        self.backend = choose(encoding, device_type=_device_type(), num_heads=config.num_attention_heads)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: AttnMaskType | None = None,
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
        context = self.backend.attend(*(heads.permute(1, 2, 0, 3) for heads in (query, key, value)), bias, self.scale)
        return context.permute(2, 0, 1, 3).flatten(2)


def _device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
