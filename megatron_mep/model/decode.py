"""A model that reads on: what it has read stays in a cache of keys and values."""

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor

from megatron_mep.encodings.carried import Carried
from megatron_mep.model.cache import Cache
from megatron_mep.model.config import ModelConfig


class Decoder:
    """Reads tokens and gives the logits of those that follow, however many calls the tokens come in.

    Collective over the tensor ranks, which give the same tokens and get the same logits.
    """

    def __init__(self, model: GPTModel, vocabulary_size: int, max_length: int, batch_size: int = 1) -> None:
        """Room for `batch_size` sequences of `max_length` tokens each; it is taken by the first `read`."""
        assert not model.config.sequence_parallel, "a single token does not divide over the tensor ranks"
        self._model = model
        self._vocabulary_size = vocabulary_size
        self._cache = Cache(batch_size, max_length)

    @property
    def length(self) -> int:
        """How many tokens of each sequence it has read."""
        return self._cache.sequence_len_offset

    def read(self, tokens: Tensor, num_logits: int = 1, chunk_size: int = 512) -> Tensor:
        """Reads the tokens `[B, S]` that follow those read before.

        Args:
            tokens: As many sequences as in every other call; they may lie on any device.
            num_logits: After how many of the tokens, the last ones, logits are wanted.
            chunk_size: Tokens that pass through the model at once. Memory beside the cache grows with it, not with S.

        Returns:
            `[B, num_logits, V]` in the model's type, without the entries that pad the vocabulary.
        """
        length = tokens.size(1)
        assert 0 < num_logits <= length, f"logits after {num_logits} of {length} tokens"
        assert self.length + length <= self._cache.max_sequence_length, "more tokens than the cache has room for"
        self._model.eval()
        logits = []
        for start in range(0, length, chunk_size):
            chunk = tokens[:, start : start + chunk_size]
            wanted = min(start + chunk.size(1) - (length - num_logits), chunk.size(1))
            after = self._after(chunk, last_alone=wanted <= 1)
            if wanted > 0:
                logits.append(after[:, -wanted:])
        return torch.cat(logits, dim=1)

    @torch.no_grad()
    def _after(self, chunk: Tensor, last_alone: bool) -> Tensor:
        """The logits after each token of a chunk, or after its last one alone."""
        self._cache.materialize_only_last_token_logits = last_alone
        device = next(self._model.parameters()).device
        logits: Tensor = self._model(
            chunk.to(device), None, None, inference_context=self._cache, runtime_gather_output=True
        )
        self._cache.sequence_len_offset += chunk.size(1)
        return logits[..., : self._vocabulary_size]


def cache_bytes(model: ModelConfig, tensor_size: int, max_length: int, dtype: torch.dtype, batch_size: int = 1) -> int:
    """What a `Decoder`'s keys and values take on each tensor rank, and their states where an encoding carries these."""
    groups = max(model.groups // tensor_size, 1)
    of_token = 2 * groups * model.head_size * dtype.itemsize
    if isinstance(model.encoding, Carried):
        of_token += model.hidden_size * torch.promote_types(dtype, torch.float32).itemsize
    return model.num_layers * batch_size * max_length * of_token
