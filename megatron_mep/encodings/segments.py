"""Segments of a text, read off its tokens: sentences and lines."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from pydantic import NonNegativeInt
from torch import Tensor
from torch.nn.functional import pad

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.placement import Placed


class Segmented(Placed, Encoding):
    """An encoding that knows where segments end: with the tokens `ends`, each the last one of its segment."""

    ends: tuple[NonNegativeInt, ...] | None = None
    """Ids of the tokens that end a segment; by default those of the vocabulary whose text does, or ends a document."""

    @abstractmethod
    def ends_with(self, spelling: bytes) -> bool:
        """Whether a token of this text ends a segment."""

    def reading(self, spellings: Sequence[bytes]) -> Self:
        """Itself, with the tokens that end a segment filled in unless they are stated."""
        if self.ends is not None:
            known = tuple(token for token in self.ends if token < len(spellings))
            if not known or known != self.ends:
                rule = f"must name tokens of the vocabulary, ids from 0 to {len(spellings) - 1}, and at least one"
                remedy = f"set it to {list(known)}" if known else "leave it out for those whose text ends a segment"
                raise ConfigError(Mistake("model.encoding.ends", list(self.ends), rule, remedy))
            return self
        # the end of a document has no text: it ends a segment in a corpus without sentences or lines, too
        ends = tuple(token for token, text in enumerate(spellings) if not text or self.ends_with(text))
        if not ends:
            rule = "finds no token in the vocabulary whose text ends a segment"
            raise ConfigError(Mistake("model.encoding.ends", None, rule, "state the ids of tokens that do"))
        return self.model_copy(update={"ends": ends})

    def segments(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The place of each of the tokens `[B, S]` in its segment, and the segment's number, both from 0 in int64."""
        assert self.ends is not None, "the vocabulary fills them in"
        last = torch.isin(tokens, torch.tensor(self.ends, dtype=tokens.dtype, device=tokens.device)).long()
        number = last.cumsum(-1) - last
        index = torch.arange(tokens.size(-1), device=tokens.device)
        # the latest index that follows an end, or 0
        first = (index * pad(last[..., :-1], (1, 0))).cummax(-1).values
        return index - first, number
