"""The seam: attention with a positional encoding, in the place of Megatron-core's own core attention."""

from collections.abc import Callable, Iterator
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
from torch import Tensor, nn

from megatron_mep.attention.backend import Backend
from megatron_mep.attention.key_bias import running_sum_of
from megatron_mep.attention.scoring import Observer, Scoring
from megatron_mep.attention.step import Decoding
from megatron_mep.attention.work import Work
from megatron_mep.encodings.base import DistanceBias, Encoding, KeyBias, LayerSizes
from megatron_mep.encodings.carried import Carried
from megatron_mep.extrapolation.base import Remarked
from megatron_mep.model.cache import Cache
from megatron_mep.model.context_attention import Shared
from megatron_mep.model.on_scores import Acting, acting_on_scores, of_heads
from megatron_mep.model.turned import ByToken, positions, turned, turned_by_states
from megatron_mep.parallel.config import Exchange
from megatron_mep.parallel.context import Context
from megatron_mep.parallel.seeds import generator_of
from megatron_mep.parallel.tensor import EncodingWeights, shared_by


class EncodedAttention(MegatronModule):
    """Causal attention of this rank's heads under an encoding; built by Megatron-core for each layer.

    Positions are counted from the keys' first, and queries stand at the end of the keys, whatever mask type Megatron
    asks for: with a cache of keys it passes `no_mask`, also for several queries. Keys are cached before they turn.

    Where context ranks share the sequence, queries, keys and values are those of this rank's chunks. `drawn_as` is the
    number of the layer whose initial weights this one has where they share one set of them.
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
        drawn_as: int | None = None,
        exchange: Exchange,
        training_backend: Backend,
        evaluation_backend: Backend,
    ) -> None:
        super().__init__(config=config)
        assert attention_type == "self", "a decoder has no cross attention"
        assert pg_collection is not None, "Megatron-core names the groups of a layer"
        tensor_group = pg_collection.tp
        assert not getattr(encoding, "across_heads", False) or tensor_group.size() == 1, "heads to mix are elsewhere"
        self._tensor_group = tensor_group
        self.context = Context(pg_collection.cp)
        """The ranks that share every sequence."""
        self.layer_number = layer_number
        self.encoding = encoding
        self.scale = softmax_scale or config.kv_channels**-0.5
        self._shared = Shared(self.context, exchange) if self.context.size > 1 else None
        self.training_backend, self.evaluation_backend = training_backend, evaluation_backend
        self.work = Work()
        """What a backend that drops keys has counted."""
        self.largest_score: Callable[[], Tensor] | None = None
        """The largest score that any query and key can have, where their norms fix it; set by who builds both."""
        self.observer: Observer | None = None
        """Told in every forward pass what the scores are made of; none is where context ranks share the sequence."""
        self._decoding = Decoding()
        self.hands_on = isinstance(encoding, Carried) and layer_number < config.num_layers
        """Whether the next layer reads states that this one changes."""
        sizes = LayerSizes(config.num_attention_heads, config.hidden_size, config.kv_channels)
        declares = self.hands_on or not isinstance(encoding, Carried)
        declared = encoding.layer_weights(sizes, generator_of(seed, drawn_as or layer_number)) if declares else {}
        self._per_head = frozenset(name for name, weight in declared.items() if weight.per_head)
        self.encoding_weights: EncodingWeights | None = EncodingWeights(
            declared,
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
        num_queries, num_keys = len(query), len(key)
        position = positions(self.encoding, num_keys * self.context.size, attention_mask, query.device)
        weights = self.given_weights()
        query, key, value = turned(self.encoding, (query, key, value), position, weights, self.context)
        if isinstance(self.encoding, Carried):
            query, key, value = turned_by_states(self.encoding, (query, key, value), attention_mask, self.hands_on)
        if self._shared is not None:
            context = self._with_other_ranks(self._shared, (query, key, value), position, attention_mask, weights)
            return context.flatten(2)
        if num_queries == num_keys:
            self._decoding.forget()
        decodes = num_queries < num_keys and not torch.is_grad_enabled()
        acting: Acting
        if decodes and isinstance(self.encoding, DistanceBias):
            of_distance = partial(of_heads, self.encoding, query.shape[2], weights)
            acting = self._decoding.bias(of_distance, num_keys, position.device)
        else:
            acting = acting_on_scores(self.encoding, position, query.shape[2], attention_mask, weights)
        by_head = [tensor.permute(1, 2, 0, 3) for tensor in (query, key, value)]
        if self.observer is not None:
            self.observer(Scoring(self.encoding, by_head[0], by_head[1], acting, self.scale))
        options = self._options(position[..., num_keys - num_queries :])
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
        Of context ranks, each has the sums of all tokens, and the gains of the queries that it computes.
        """
        assert isinstance(self.encoding, KeyBias), f"{self.encoding.name} reads no hidden states"
        hidden = (
            gather_from_sequence_parallel_region(hidden, group=self._tensor_group)
            if self.config.sequence_parallel
            else shared_by(self._tensor_group, hidden)
        )
        weights = self.given_weights()
        increments, gain = self.encoding.increments(hidden, **weights), self.encoding.gain(hidden, **weights)
        increments = self.context.gathered(increments, -1)
        if gain is not None and self._shared is not None and self._shared.computes_all_queries:
            gain = self.context.gathered(gain, -1)
        sums = running_sum_of(increments) if cache is None else cache.sums_with(increments, self.layer_number)
        return sums if gain is None else torch.cat((sums, gain.to(sums.dtype)), dim=-1)

    def _with_other_ranks(
        self,
        shared: Shared,
        by_token: ByToken,
        position: Tensor,
        read: Tensor | None,
        weights: dict[str, Tensor],
    ) -> Tensor:
        """The contexts `[S / N, B, H, E]` of queries, keys and values of this context rank."""
        heads = shared.heads(by_token[0].shape[2])
        own = {name: weight[heads] if name in self._per_head else weight for name, weight in weights.items()}
        if isinstance(self.encoding, KeyBias) and read is not None:
            read = read[:, heads]
        acting = acting_on_scores(self.encoding, position, heads.stop - heads.start, read, own)
        with self._dropout_stream():
            return shared.attended(*by_token, acting, partial(self.backend.attend, **self._options(position)))

    def _options(self, at_queries: Tensor) -> dict[str, Any]:
        """What the backend is told beside what it computes with, for queries at some of these positions."""
        options: dict[str, Any] = {"scale": self.scale}
        if self.backend.counts_work:
            options["work"] = self.work
        if self.backend.takes_bound and self.largest_score is not None and getattr(self.encoding, "keeps_norms", True):
            bound, factor = self.largest_score(), self.encoding.query_factor(at_queries)
            options["bound"] = bound if factor is None else bound * factor.abs().max()
        return options

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
        shared = f"{self._shared.told}, " if self._shared is not None else ""
        return f"{told}, causal mask, {shared}{self.backend.name} attention ({self.backend.reason})"

    def _dropout_stream(self) -> AbstractContextManager[None]:
        """Where attention dropout draws: in the default stream all tensor ranks would drop alike, in other heads."""
        drops = self.training and self.config.attention_dropout > 0
        return get_cuda_rng_tracker().fork() if drops else nullcontext()


def encoded_layers(model: nn.Module) -> Iterator[EncodedAttention]:
    """The core attention of every layer, in order."""
    return (module for module in model.modules() if isinstance(module, EncodedAttention))
