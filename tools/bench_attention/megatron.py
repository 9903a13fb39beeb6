"""Megatron-core's local attention with a materialised bias: what its users have without this project.

`DotProductAttention` refuses an `attention_bias`. Nothing of it is rewritten: it is built as Megatron builds it, and
between its scores and its masked softmax stands one step more, which adds the dense bias to the scores in place. A
fixed bias is made once; one that learns is looked up by distance in every pass. The mask is given, as Megatron's data
loader gives it.
"""

from collections.abc import Callable

import torch
from megatron.core import parallel_state
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from megatron_mep.attention.reference import MAX_DENSE_POSITIONS, distances
from megatron_mep.parallel import groups
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.environment import Environment

MAX_POSITIONS = MAX_DENSE_POSITIONS


class BiasedSoftmax(nn.Module):
    """Megatron's masked softmax of scores to which a bias was added."""

    def __init__(self, softmax: nn.Module, dense_bias: Callable[[], Tensor]) -> None:
        super().__init__()
        self.softmax, self.dense_bias = softmax, dense_bias

    def forward(self, scores: Tensor, mask: Tensor, softmax_offset: None) -> Tensor:
        """Scores `[B, H, Q, K]` -> probabilities; the scores are overwritten, as Megatron's own mask does."""
        probabilities: Tensor = self.softmax(scores.add_(self.dense_bias()), mask, softmax_offset)
        return probabilities


def megatron_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *, scale: float
) -> Callable[[], Tensor]:
    """A function that computes the attention of queries and keys of equal lengths; see `toeplitz_attention`."""
    _join()
    num_heads, length = query.size(1), query.size(2)
    distance = distances(length, length, query.device)
    mask, past = (distance < 0)[None, None], distance.clamp(min=0)

    def dense() -> Tensor:
        return bias[:, past].to(query.dtype)

    fixed = None if bias.requires_grad else dense()
    core = _core_attention(num_heads, key.size(1), query.size(3), scale, query.dtype)
    core.scale_mask_softmax = BiasedSoftmax(core.scale_mask_softmax, dense if fixed is None else lambda: fixed)

    def attend() -> Tensor:
        by_position = (tensor.permute(2, 0, 1, 3) for tensor in (query, key, value))  # [S, B, H, D]
        context: Tensor = core(*by_position, attention_mask=mask)
        return context.unflatten(2, (num_heads, -1)).permute(1, 2, 0, 3)

    return attend


def _core_attention(
    num_heads: int, num_groups: int, head_size: int, scale: float, dtype: torch.dtype
) -> DotProductAttention:
    config = TransformerConfig(
        num_layers=1,
        hidden_size=num_heads * head_size,
        num_attention_heads=num_heads,
        num_query_groups=num_groups,
        attention_dropout=0.0,
        bf16=dtype == torch.bfloat16,
        # needs Apex
        masked_softmax_fusion=False,
    )
    return DotProductAttention(config, 1, AttnMaskType.causal, "self", softmax_scale=scale)


def _join() -> None:
    """Megatron's groups, streams and buffer, of this process alone."""
    if parallel_state.is_initialized():
        return
    groups.initialize(Environment(), ParallelConfig())
    # on a CPU that turned torch.compile off, which FlexAttention needs in the same process
    torch.compiler.set_stance("default")
