"""A decoder layer that hands the states of an encoding on beside the hidden states.

Between layers they are one tensor, the stream `[S, B, hidden_size + H * D]`: what passes activations on, keeps them to
compute a layer again, or sends them to another rank needs to know nothing of it. Its type is that of the states, fp32
or wider, which holds hidden states of the model's type without loss. The first layer begins the stream, the last ends
it.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel.layers import RowParallelLinear
from torch import Tensor

from megatron_mep.encodings.carried import Carried
from megatron_mep.model.cache import Cache
from megatron_mep.model.seeded_layer import SeededLayer


class CarryingLayer(SeededLayer):
    """Attention turned by the states, the feed-forward layer, and then the states that the next layer turns by."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        inference_context: Cache | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """The stream in and out; hidden states `[S, B, hidden_size]` into the first layer and out of the last."""
        assert attention_mask is None, "the causal mask is the only one"
        assert all(option is None for option in options.values()), f"a plain decoder has none of {options}"
        cache, core = inference_context, self.self_attention.core_attention
        hidden, states = self._divided(hidden_states, 0 if cache is None else cache.sequence_len_offset)
        # a view: the gradients of attention are summed apart, in one order whether it is computed once or again
        of_keys = states.view_as(states) if cache is None else cache.states_with(states, self.layer_number)
        # in the place of a mask, the one argument that is recomputed with core attention and given its gradient
        result, bias = self.self_attention(self.input_layernorm(hidden), of_keys, inference_context=cache)
        context, attended = result.tensor_split([self.config.hidden_size], dim=-1)
        hidden = self._added(self.self_attn_bda, context, bias, hidden)
        output, bias = self.mlp(self.pre_mlp_layernorm(hidden))
        if core.hands_on:
            # ahead of the sum, which outside training is written to `output`
            attended, added = attended.reshape(states.shape).to(states.dtype), output if bias is None else output + bias
            states = core.encoding.updated(states, attended, added, **core.given_weights())
        hidden = self._added(self.mlp_bda, output, bias, hidden)
        return torch.cat((hidden.to(states.dtype), states.flatten(2)), dim=-1) if core.hands_on else hidden, None

    def _divided(self, stream: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Hidden states in the model's type, and states `[S, B, H, D]`, of the tokens from position `first` on."""
        if self.layer_number == 1:
            return stream, self._initial(stream, first)
        hidden, states = stream.tensor_split([self.config.hidden_size], dim=-1)
        model_type = self.self_attention.linear_qkv.weight.dtype
        return hidden.to(model_type), states.unflatten(-1, (self.config.num_attention_heads, -1))

    def _initial(self, hidden: Tensor, first: int) -> Tensor:
        encoding: Carried = self.self_attention.core_attention.encoding
        length, num_samples, _ = hidden.shape
        context = self.self_attention.core_attention.context
        stop = first + length * context.size
        position = context.own(torch.arange(first, stop, dtype=torch.float32, device=hidden.device), 0)
        states = encoding.initial(position, self.config.kv_channels)
        states = states.to(torch.promote_types(hidden.dtype, states.dtype))
        return states[:, None, None].expand(-1, num_samples, self.config.num_attention_heads, -1)

    def _added(self, add: Any, output: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        """What a part of the layer puts out, added to the residual after dropout."""
        result: Tensor = add(self.training, self.config.bias_dropout_fusion)(
            (output, bias), residual, self.hidden_dropout
        )
        return result


class ContextProjection(RowParallelLinear):
    """Projects the contexts of all heads, and passes on what attention made of the states beside them."""

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """`[S, B, H * (D + E)]`, each head's context first -> `[S, B, hidden_size + H * E]`, and the bias."""
        heads = input_.unflatten(-1, (self.config.num_attention_heads, -1))
        context, rest = heads.tensor_split([self.config.kv_channels], dim=-1)
        output, bias = super().forward(context.flatten(2))
        return torch.cat((output, rest.flatten(2)), dim=-1), bias
