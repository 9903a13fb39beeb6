"""What attention keeps for the backward pass, and what it holds while it computes, alone or with context ranks."""

import math

from megatron_mep.attention import chunked, ring
from megatron_mep.attention.backend import Backend
from megatron_mep.encodings.base import DistanceBias, PositionBias, Rotation
from megatron_mep.parallel.config import Exchange
from megatron_mep.plan.share import Share

WIDE = 4
"""Bytes of a number in fp32."""
COPIES_OF_SCORES = 8
"""What `chunked` holds of a chunk's scores in the backward pass, about; more where an encoding computes more a pair."""
COPIES_OF_ALL_SCORES = 3
"""The same of `reference`, beside what it saves."""
COPIES_OF_BLOCK = 4
"""The same of `ring`, of the scores of some queries with a block of keys."""
COPIES_OF_WHOLE = 3
"""Gradients of the keys and values of all context ranks that are added up and sent at once, about."""
COPIES_ON_THE_WAY = 5
"""Gradients of keys or values that a ring adds up, sends and receives at once; and keys or values themselves."""


class Attention:
    """Bytes of one layer's core attention on one rank. Measured on a CPU; what a GPU saves is read off the code."""

    def __init__(self, share: Share, on_gpu: bool) -> None:
        model, tokens = share.model, share.tokens
        self._share, self._on_gpu, self._itemsize = share, on_gpu, share.itemsize
        self._exchange: Exchange | None = share.exchange if share.context > 1 else None
        self.queries = tokens * model.hidden_size // share.tensor
        """Numbers in the queries of this rank's tokens; as many in what attention puts out."""
        groups = max(model.groups // share.tensor, 1)
        self.keys = tokens * groups * model.head_size
        """Numbers in their keys; as many in their values."""
        self._repeated = share.context // math.gcd(groups, share.context)
        self._rows = tokens * model.num_attention_heads // share.tensor
        self._heads = model.num_attention_heads // share.tensor
        self._grouped = 1 < groups < self._heads
        if self._exchange == "ulysses":
            self._heads //= share.context

    @property
    def inputs(self) -> int:
        """Queries, keys and values as they are projected, and queries once more where they lie apart by group."""
        return self._projected + self._apart

    @property
    def _projected(self) -> int:
        return self._itemsize * (self.queries + 2 * self.keys)

    @property
    def _apart(self) -> int:
        return self._itemsize * self.queries if self._grouped else 0

    def released(self, backend: Backend, acts: bool) -> int:
        """What of the inputs nothing keeps, others having taken their place; all are kept to be computed with again."""
        if self._share.model.qk_norm:
            return 0
        chunked_here, narrow = backend.name == "chunked", self._itemsize < WIDE
        queries = chunked_here or self._turned(acts) or self._exchange == "ulysses"
        groups = (chunked_here and narrow) or self._exchange in ("all_gather", "ulysses")
        return (self._apart if queries else 0) + (self._projected if groups and (queries or self._grouped) else 0)

    def saved(self, backend: Backend, acts: bool) -> int:
        """What it saves beside its inputs and its result; all of it is computed again under `selective`."""
        return sum(
            (
                self.bias(backend, acts),
                self._saved_queries(backend, acts),
                self._saved_groups(backend, acts),
                self._saved_rows(backend),
                self._saved_result(backend),
            )
        )

    def bias(self, backend: Backend, acts: bool) -> int:
        """The bias by distance of the heads that act here, in fp32; `compiled` keeps it as its kernel reads it, too."""
        length = self._share.training.seq_length
        if not acts or not isinstance(self._share.model.encoding, DistanceBias):
            # a ring adds zeros, where no function of positions stands in their place
            adds_zeros = backend.name == "ring" and not (acts and isinstance(self._share.model.encoding, PositionBias))
            return WIDE * length if adds_zeros else 0
        of_all = WIDE * self._heads * length
        if backend.name == "compiled":
            return of_all + int(of_all * self._keys_of_calls)
        return 0 if backend.name == "reference" else of_all

    def scores(self, backend: Backend) -> int:
        """Those that attention writes out at once: of a chunk of queries, or of all."""
        length = self._share.training.seq_length
        queries = length if self._exchange in (None, "ulysses") else length // (2 * self._share.context)
        match backend.name:
            case "chunked":
                copies, rows, keys = COPIES_OF_SCORES, min(chunked.NUM_ROWS, queries), length
            case "reference":
                copies, rows, keys = COPIES_OF_ALL_SCORES, queries, length
            case "ring":
                copies, rows, keys = COPIES_OF_BLOCK, min(ring.NUM_ROWS, queries), queries
            case _:
                return 0
        return copies * WIDE * self._share.training.micro_batch_size * self._heads * rows * keys

    @property
    def exchanged(self) -> int:
        """Gradients, and keys and values with them, that are here for other context ranks in the backward pass."""
        match self._exchange:
            case "all_gather":
                return COPIES_OF_WHOLE * WIDE * 2 * self.keys * self._share.context
            case "ring":
                on_the_way = COPIES_ON_THE_WAY * WIDE * 2 * self.keys
                return on_the_way + 3 * WIDE * self.queries
            case "ulysses":
                return 2 * self._itemsize * (self.queries + 2 * self.keys * self._repeated)
        return 0

    @property
    def _keys_of_calls(self) -> float:
        """Keys that the calls of a backend are given, all together, as multiples of the sequence."""
        context = self._share.context
        return (2 * context + 1) / (2 * context) if self._exchange == "all_gather" else 1

    def _turned(self, acts: bool) -> bool:
        return acts and isinstance(self._share.model.encoding, Rotation)

    def _saved_queries(self, backend: Backend, acts: bool) -> int:
        if backend.name == "chunked":
            return WIDE * self.queries
        return self._itemsize * self.queries if self._turned(acts) or self._exchange == "ulysses" else 0

    def _saved_groups(self, backend: Backend, acts: bool) -> int:
        """Keys and values: those of other ranks, wide copies, and keys that have turned."""
        of_others = {"all_gather": self._share.context, "ulysses": self._repeated}
        times = of_others.get(self._exchange or "", 1)
        if backend.name == "chunked" and self._itemsize < WIDE:
            return int(2 * WIDE * self.keys * times * self._keys_of_calls)
        if self._exchange in of_others:
            return 2 * self._itemsize * self.keys * times
        return self._itemsize * self.keys if self._turned(acts) else 0

    def _saved_rows(self, backend: Backend) -> int:
        """What each query has for itself: logarithms of sums, or its weights on all keys."""
        length, keys = self._share.training.seq_length, self._share.training.seq_length
        if self._exchange == "all_gather":
            keys = int(keys * self._keys_of_calls / 2)
        match backend.name:
            case "compiled":
                return 2 * WIDE * self._rows
            case "chunked":
                return 0
            case "reference":
                probs = WIDE + (self._itemsize if self._itemsize < WIDE else 0)
                return (probs * self._rows + length) * keys
            case "plain" if self._exchange == "all_gather":
                # masks, which torch's kernel takes as numbers
                return WIDE * self._rows + self._itemsize * length // self._share.context * keys
            case _:
                return WIDE * self._rows

    def _saved_result(self, backend: Backend) -> int:
        """The result as attention has it, where the next layer has it in another order."""
        if backend.name == "ring":
            return WIDE * self.queries
        if self._on_gpu:
            return 0 if backend.name == "chunked" else self._itemsize * self.queries
        in_other_order = self._exchange is not None and backend.name not in ("chunked", "reference")
        return self._itemsize * self.queries if in_other_order else 0
