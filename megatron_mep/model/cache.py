"""What a model that reads on keeps of the tokens that it has read."""

import torch
from megatron.core.inference.contexts import StaticInferenceContext
from torch import Tensor

from megatron_mep.attention.key_bias import running_sum_of


class Cache(StaticInferenceContext):
    """Keys and values as Megatron-core caches them, and the running sums, states and tokens of encodings with these."""

    def __init__(self, max_batch_size: int, max_sequence_length: int) -> None:
        super().__init__(max_batch_size, max_sequence_length)
        self._sums: dict[int, Tensor] = {}
        self._states: dict[int, Tensor] = {}
        self._tokens: Tensor | None = None

    def sums_with(self, increments: Tensor, layer_number: int) -> Tensor:
        """Takes up the increments `[B, H, S]` of the next tokens: the sums of all K tokens read, `[B, H, K]` fp64."""
        num_samples, num_heads, num_tokens = increments.shape
        first, stop = self.sequence_len_offset, self.sequence_len_offset + num_tokens
        if layer_number not in self._sums:
            shape = (self.max_batch_size, num_heads, self.max_sequence_length)
            self._sums[layer_number] = increments.new_empty(shape, dtype=torch.float64)
        sums = self._sums[layer_number][self.batch_size_offset : self.batch_size_offset + num_samples]
        sums[:, :, first:stop] = running_sum_of(increments, sums[:, :, first - 1] if first else None)
        return sums[:, :, :stop]

    def states_with(self, states: Tensor, layer_number: int) -> Tensor:
        """Takes up the states `[S, B, H, D]` of the next tokens: those of all K tokens read, `[K, B, H, D]`."""
        num_tokens, num_samples, *state = states.shape
        if layer_number not in self._states:
            shape = (self.max_sequence_length, self.max_batch_size, *state)
            self._states[layer_number] = states.new_empty(shape)
        first, stop = self.sequence_len_offset, self.sequence_len_offset + num_tokens
        held = self._states[layer_number][:, self.batch_size_offset : self.batch_size_offset + num_samples]
        held[first:stop] = states
        return held[:stop]

    def tokens_with(self, tokens: Tensor) -> Tensor:
        """Takes up the next tokens `[B, S]`: all that were read, `[B, K]`."""
        assert self.batch_size_offset == 0, "tokens are read of all samples at once"
        before = self._tokens
        if before is not None:
            tokens = torch.cat((before[:, : self.sequence_len_offset], tokens), dim=1)
        self._tokens = tokens
        return tokens

    def swap_key_value_dict(self, batch_idx: Tensor) -> None:
        """Puts the samples in another order."""
        super().swap_key_value_dict(batch_idx)
        self._sums = {layer_number: sums[batch_idx] for layer_number, sums in self._sums.items()}
        self._states = {layer_number: states[:, batch_idx] for layer_number, states in self._states.items()}
        self._tokens = None if self._tokens is None else self._tokens[batch_idx]
