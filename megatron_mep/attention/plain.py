"""Causal attention without a bias on any device: torch's scaled dot product attention, for Q != K too."""

import torch
from torch import Tensor
from torch.nn import functional

from megatron_mep.attention.reference import distances


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: None = None,
    *,
    scale: float,
    dropout: float = 0.0,
    num_rows: int = 256,
) -> Tensor:
    """Causal softmax attention.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, E]` with E >= D.
        bias: None; it stands here because all backends are called alike.
        scale: Factor of the scores, usually D ** -0.5.
        dropout: Probability with which an attention weight is dropped.
        num_rows: Query rows of one chunk where 1 < Q < K; masks are `[num_rows, K]`.

    Returns:
        `[B, H, Q, E]`.
    """
    assert bias is None, "plain attention adds no bias"
    num_queries, num_keys = query.size(2), key.size(2)
    assert num_queries <= num_keys, f"{num_queries} queries cannot be the last of {num_keys} positions"

    # torch's kernels in linear memory know one size of heads: zeros add nothing to the scores
    missing = value.size(-1) - query.size(-1)
    if missing:
        query, key = (functional.pad(heads, (0, missing)) for heads in (query, key))

    def attend(query: Tensor, num_keys: int, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return functional.scaled_dot_product_attention(
            query,
            key[:, :, :num_keys],
            value[:, :, :num_keys],
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=query.size(1) != key.size(1),
        )

    if num_queries == num_keys:
        return attend(query, num_keys, is_causal=True)
    if num_queries == 1:
        return attend(query, num_keys)
    # torch's own `is_causal` aligns the first query with the first key.
    outputs = []
    for start in range(0, num_queries, num_rows):
        chunk = query[:, :, start : start + num_rows]
        num_visible = num_keys - num_queries + start + chunk.size(2)
        visible = distances(chunk.size(2), num_visible, query.device) >= 0
        outputs.append(attend(chunk, num_visible, mask=visible))
    return torch.cat(outputs, dim=2)
