"""Megatron-core's GPTModel under an encoding that acts on embeddings, or that places tokens elsewhere than in order."""

from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.placement import Embedded, Placed
from megatron_mep.model.cache import Cache
from megatron_mep.model.copies import name_copies
from megatron_mep.parallel.context import Context
from megatron_mep.parallel.seeds import Purpose, seed_for
from megatron_mep.parallel.tensor import EncodingWeights


class EncodedGPT(GPTModel):
    """A GPTModel that knows the places of its tokens, and tells the embeddings and every layer.

    To the layers they go in the place of the attention mask, which a causal decoder has no use for: as an argument of
    every layer they are there when activations are computed again.

    Where context ranks share the sequence, all of them give the whole of it and get the whole result: its tokens are
    divided here, and put together again. Gradients of weights are to be averaged over them.

    Every pipeline stage is given the tokens. What a stage but the last returns are the hidden states of this rank's
    tokens, for the next one.
    """

    def __init__(self, *args: Any, encoding: Encoding, seed: int, lender: int | None, **options: Any) -> None:
        """As Megatron-core's; the encoding is that of the layers, `lender` the layer whose weights of it all use."""
        added = "learned_absolute" if isinstance(encoding, Embedded) else "none"
        # Megatron-core's own table has no row; what stands in its place comes after
        super().__init__(*args, position_embedding_type=added, max_sequence_length=0, **options)
        self.encoding = encoding
        self.lender = lender
        self._seed = seed
        self.context = Context(self.pg_collection.cp)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: None = None,
        attention_mask: None = None,
        *args: Any,
        labels: Tensor | None = None,
        inference_context: Cache | None = None,
        first_sample: int | None = None,
        **options: Any,
    ) -> Tensor:
        """Tokens `[B, S]` as Megatron-core takes them; positions and mask are the encoding's to say.

        What the encoding draws in training to place tokens follows from the number of the first sample, alike on all
        ranks; without one it is drawn from torch's default generator.
        """
        assert position_ids is None, "the encoding says where tokens are"
        assert attention_mask is None, "the causal mask is the only one"
        assert inference_context is None or self.context.size == 1, "a single token does not divide over context ranks"
        first = 0 if inference_context is None else inference_context.sequence_len_offset
        places = self._places(input_ids, inference_context, first_sample)
        position = torch.arange(first, first + input_ids.size(1), device=input_ids.device)
        if places is not None:
            position = places[..., first:]
        result: Tensor = super().forward(
            self.context.own(input_ids, 1),
            self.context.own(position, -1),
            places,
            *args,
            labels=None if labels is None else self.context.own(labels, 1),
            inference_context=inference_context,
            **options,
        )
        return self.context.whole(result, 1) if self.post_process else result

    def sharded_state_dict(self, *args: Any, **options: Any) -> ShardedStateDict:
        """As Megatron-core's, weights that several stages hold under one key."""
        entries = super().sharded_state_dict(*args, **options)
        name_copies(entries, self)
        return entries

    @property
    def chunks(self) -> "list[EncodedGPT]":
        """The parts of the model that are here: this one."""
        return [self]

    @property
    def width(self) -> int:
        """Numbers that each token has between two layers."""
        states = self.config.num_attention_heads * self.config.kv_channels if isinstance(self.encoding, Carried) else 0
        return self.config.hidden_size + states

    def _places(self, input_ids: Tensor, cache: Cache | None, first_sample: int | None) -> Tensor | None:
        """Those of the tokens and of all that are cached, `[T, B, K]`; `None` where they follow in order."""
        if not isinstance(self.encoding, Placed):
            return None
        tokens = input_ids if cache is None else cache.tokens_with(input_ids)
        if first_sample is None:
            return self.encoding.places(tokens, self.training)
        with torch.random.fork_rng(devices=[]):
            # on the CPU alone, where places are drawn
            torch.default_generator.manual_seed(seed_for(Purpose.PLACES, self._seed, first_sample))
            return self.encoding.places(tokens, self.training)


class AddedVectors(torch.nn.Module):
    """What an encoding adds to the embeddings, in the place of Megatron-core's table of positions."""

    def __init__(self, name: str, encoding: Embedded, hidden_size: int, weights: EncodingWeights) -> None:
        super().__init__()
        self._name, self._encoding, self._hidden_size = name, encoding, hidden_size
        self.encoding_weights = weights
        # of the type and on the device of the model, wherever that goes
        self.register_buffer("_like", torch.empty(0), persistent=False)

    @property
    def in_force(self) -> str:
        """What is added, for the line at start-up."""
        told, limit = f"{self._name} is added", self._encoding.num_told_apart
        return told if limit is None else f"{told}, the same vector from position {limit - 1} on"

    def forward(self, position: Tensor) -> Tensor:
        """Of positions `[S]` or places `[T, B, S]`, the vectors `[S, hidden_size]` or `[B, S, hidden_size]`."""
        like = self.get_buffer("_like").dtype
        wide = position.to(torch.promote_types(like, torch.float32))
        return self._encoding.added(wide, self._hidden_size, **self.encoding_weights()).to(like)
