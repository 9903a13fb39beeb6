"""The seam: attention with a positional encoding, in the place of Megatron-core's own core attention."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from megatron_mep.attention.backend import Backend
from megatron_mep.attention.key_bias import running_sum_of
from megatron_mep.attention.step import Decoding
from megatron_mep.attention.work import Work
from megatron_mep.encodings.base import (
    DistanceBias,
    Encoding,
    KeyBias,
    LayerSizes,
    PairScores,
    PositionBias,
    Rotation,
    ScoreMix,
)
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.placement import Placed
from megatron_mep.extrapolation.base import Remarked
from megatron_mep.model.cache import Cache
from megatron_mep.parallel.tensor import EncodingWeights, generator_of, shared_by


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
        assert not getattr(encoding, "across_heads", False) or tensor_group.size() == 1, "heads to mix are elsewhere"
        self._tensor_group = tensor_group
        self.layer_number = layer_number
        self.encoding = encoding
        self.scale = softmax_scale or config.kv_channels**-0.5
        self.training_backend, self.evaluation_backend = training_backend, evaluation_backend
        self.work = Work()
        """What a backend that drops keys has counted."""
        self.largest_score: Callable[[], Tensor] | None = None
        """The largest score that any query and key can have, where their norms fix it; set by who builds both."""
        self._decoding = Decoding()
        self.hands_on = isinstance(encoding, Carried) and layer_number < config.num_layers
        """Whether the next layer reads states that this one changes."""
        sizes = LayerSizes(config.num_attention_heads, config.hidden_size, config.kv_channels)
        declares = self.hands_on or not isinstance(encoding, Carried)
        self.encoding_weights: EncodingWeights | None = EncodingWeights(
            encoding.layer_weights(sizes, generator_of(seed, layer_number)) if declares else {},
            sizes.num_heads,
            tensor_group.rank(),
            tensor_group.size(),
            tensor_group,
        )
        """Its own; `None` where it borrows those of another layer."""
        self._borrowed: Callable[[], dict[str, Tensor]] | None = None

    def borrow_weights(self, lender: "EncodedAttention") -> None:
        """Share the weights of another layer, which alone holds them as parameters and in checkpoints."""
        self.encoding_weights = None
        # a method, since a module would be registered here too
        self._borrowed = lender.given_weights

    def given_weights(self) -> dict[str, Tensor]:
        """The weights that the formula takes, its own or borrowed."""
        given = self._borrowed or self.encoding_weights
        assert given is not None, "a layer without weights of its own borrows some"
        return given()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: AttnMaskType | None = None,  # noqa: ARG002
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Queries `[Q, B, H, D]`, keys and values `[K, B, G, D]` -> `[Q, B, H * D]`.

        In the place of a mask comes what `read` returned, where the encoding reads hidden states, the places of all
        keys, where it is `Placed`, or their states, where these are `Carried`: then each head's D dimensions are
        followed by the D of what attention makes of the states, unless this layer is the last.
        """
        assert attention_bias is None, "the encoding is the only bias"
        assert packed_seq_params is None, "packed documents are not masked here"
        num_queries, num_keys = query.shape[0], key.shape[0]
        position = self._positions(num_keys, attention_mask, query.device)
        weights = self.given_weights()
        at_queries = position[..., num_keys - num_queries :]
        if isinstance(self.encoding, Rotation):
            if self.encoding.turns_heads_apart:
                copies = query.shape[2] // key.shape[2]
                key, value = (tensor.repeat_interleave(copies, dim=2) for tensor in (key, value))
            query, key = (
                self.encoding.turned(heads, at, **weights) for heads, at in ((query, at_queries), (key, position))
            )
        if isinstance(self.encoding, Carried):
            query, key, value = self._with_states(self.encoding, attention_mask, query, key, value)
        factor = self.encoding.query_factor(at_queries)
        if factor is not None:
            query = (query * factor[:, None, None, None]).to(query.dtype)
        if num_queries == num_keys:
            self._decoding.forget()
        acting = self._acting(position, num_queries, query.shape[2], attention_mask, weights)
        by_head = [tensor.permute(1, 2, 0, 3) for tensor in (query, key, value)]
        options: dict[str, Any] = {"scale": self.scale}
        if self.backend.counts_work:
            options["work"] = self.work
        if self.backend.takes_bound and self.largest_score is not None and getattr(self.encoding, "keeps_norms", True):
            bound = self.largest_score()
            options["bound"] = bound if factor is None else bound * factor.abs().max()
        decodes = num_queries < num_keys and not torch.is_grad_enabled()
        if decodes and self.backend.step and self.backend.counts_work:
            self._decoding.note(by_head[1], num_queries)
        if decodes and self.backend.step and num_queries == 1:
            context = self.backend.step(*by_head, decoding=self._decoding, **options)
        else:
            with self._dropout_stream():
                context = self.backend.attend(*by_head, acting, **options)
        return context.permute(2, 0, 1, 3).flatten(2)

    def read(self, hidden: Tensor, cache: Cache | None) -> Tensor:
        """What the encoding reads off hidden states `[S, B, hidden_size]`: of all tokens, or this rank's part of them.

        The running sum of all K tokens, which are the cached ones and these, then the gain of each of these if there
        is one: `[B, H, K]` or `[B, H, K + Q]` in fp64. Gradients of the hidden states are those of all tensor ranks.
        """
        assert isinstance(self.encoding, KeyBias), f"{self.encoding.name} reads no hidden states"
        hidden = (
            gather_from_sequence_parallel_region(hidden, group=self._tensor_group)
            if self.config.sequence_parallel
            else shared_by(self._tensor_group, hidden)
        )
        weights = self.given_weights()
        increments, gain = self.encoding.increments(hidden, **weights), self.encoding.gain(hidden, **weights)
        sums = running_sum_of(increments) if cache is None else cache.sums_with(increments, self.layer_number)
        return sums if gain is None else torch.cat((sums, gain.to(sums.dtype)), dim=-1)

    def _with_states(
        self, encoding: Carried, states: Tensor | None, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys turned by the states `[K, B, H, D]` of the keys, and values that end with these."""
        assert states is not None, "the layer must be a CarryingLayer"
        assert len(states) == len(key), f"states of {len(states)} of {len(key)} keys"
        copies = query.shape[2] // key.shape[2]
        key, value = (tensor.repeat_interleave(copies, dim=2) for tensor in (key, value))
        query, key = encoding.turned(query, states[len(key) - len(query) :]), encoding.turned(key, states)
        # as one value, so that both are averaged by the same weights, under dropout too
        return query, key, torch.cat((value, states.to(value.dtype)), dim=-1) if self.hands_on else value

    def _positions(self, num_keys: int, places: Tensor | None, device: torch.device) -> Tensor:
        """Those of all keys: `[K]`, or `[T, B, K]` where the encoding is `Placed`."""
        if not isinstance(self.encoding, Placed):
            return torch.arange(num_keys, dtype=torch.float32, device=device)
        assert places is not None, "the model must be built as an EncodedGPT"
        assert places.size(-1) == num_keys, f"places of {places.size(-1)} of {num_keys} keys"
        return places.to(torch.float32)

    def _acting(
        self, position: Tensor, num_queries: int, num_heads: int, read: Tensor | None, weights: dict[str, Tensor]
    ) -> Tensor | Callable[..., Tensor] | tuple[Any, ...] | None:
        """What the backend is given beside queries, keys and values."""
        match self.encoding:
            case DistanceBias() if num_queries < len(position) and not torch.is_grad_enabled():
                of_distance = partial(_of_heads, self.encoding, num_heads, weights)
                return self._decoding.bias(of_distance, len(position), position.device)
            case DistanceBias():
                return _of_heads(self.encoding, num_heads, weights, position)
            case PositionBias():
                return partial(self.encoding.of_positions, **weights)
            case ScoreMix():
                return partial(self.encoding.of_scores, **weights)
            case PairScores():
                return partial(_pairs, self.encoding.at_length(position.size(-1)), position, weights)
            case KeyBias():
                assert read is not None, "the layer must be built with ReadingAttention"
                num_keys = len(position)
                return read[..., :num_keys], read[..., num_keys:] if read.size(-1) > num_keys else None
        return None

    @property
    def backend(self) -> Backend:
        """How attention is computed now: dropout acts in training alone."""
        return self.training_backend if self.training else self.evaluation_backend

    @property
    def in_force(self) -> str:
        """What acts in this layer, for the line at start-up."""
        told = self.encoding.name
        if isinstance(self.encoding, Remarked):
            told += f" ({self.encoding.remark(self.config.kv_channels)})"
        return f"{told}, causal mask, {self.backend.name} attention ({self.backend.reason})"

    def _dropout_stream(self) -> AbstractContextManager[None]:
        """Where attention dropout draws: in the default stream all tensor ranks would drop alike, in other heads."""
        drops = self.training and self.config.attention_dropout > 0
        return get_cuda_rng_tracker().fork() if drops else nullcontext()


def _of_heads(encoding: DistanceBias, num_heads: int, weights: dict[str, Tensor], distance: Tensor) -> Tensor:
    """The biases `[H, *distance.shape]` of all heads of this rank."""
    return encoding.of_distance(distance, **weights).expand(num_heads, *distance.shape)


def _pairs(
    encoding: PairScores,
    position: Tensor,
    weights: dict[str, Tensor],
    query: Tensor,
    key: Tensor,
    query_index: Tensor,
    key_index: Tensor,
) -> Tensor:
    """The scores of some of the queries and keys that stand at `position [K]` or `[T, B, K]`."""
    position = position.to(query.dtype)
    return encoding.of_pairs(query, key, position[..., query_index], position[..., key_index], **weights)
