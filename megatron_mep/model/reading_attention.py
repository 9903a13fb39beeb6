"""Self attention for encodings that read the hidden states which queries and keys are projected from."""

from typing import Any

from megatron.core.transformer.attention import SelfAttention
from torch import Tensor

from megatron_mep.model.cache import Cache


class ReadingAttention(SelfAttention):
    """Hands its core attention what the encoding reads off hidden states.

    It goes in the place of the attention mask, which a causal decoder has no use for: the one argument beside queries,
    keys and values that Megatron-core takes through the recomputation of core attention with its gradient.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        inference_context: Cache | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As Megatron-core's; a cache must be one that keeps running sums."""
        assert attention_mask is None, "the causal mask is the only one"
        assert inference_context is None or isinstance(inference_context, Cache), "sums must be cached with the keys"
        read = self.core_attention.read(hidden_states, inference_context)
        output: tuple[Tensor, Tensor | None] = super().forward(
            hidden_states, read, *args, inference_context=inference_context, **options
        )
        return output
