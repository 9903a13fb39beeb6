"""The length that a request may have: what is longer is refused, or cut where the user has said so."""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_mep.config.errors import Mistake, UserError
from megatron_mep.harness.batches import Tokens


class HarnessError(UserError):
    """A task cannot be put to a model as it is."""


@dataclass(frozen=True)
class MaxLength:
    """The most tokens that a model reads at once."""

    tokens: int
    truncate: bool = False
    """Whether contexts that are too long are cut from the left."""

    def fitted(self, contexts: Sequence[Tokens], num_more: Sequence[int]) -> list[Tokens]:
        """The contexts, each of which is to be followed by so many more tokens; a `HarnessError` tells of all."""
        longest = max(map(sum, zip(map(len, contexts), num_more, strict=True)), default=0)
        if longest <= self.tokens:
            return list(contexts)
        if max(num_more) >= self.tokens:
            rule = f"leaves no room for a context: a continuation takes {max(num_more)} tokens"
            raise HarnessError(Mistake("--max-length", self.tokens, rule, f"set it to {longest} or more"))
        cut = [context[more - self.tokens :] for context, more in zip(contexts, num_more, strict=True)]
        if not self.truncate:
            num_cut = sum(map(len, contexts)) - sum(map(len, cut))
            rule = f"would cut {num_cut} tokens off {_num_shorter(cut, contexts)} of {len(cut)} requests"
            remedy = f"set it to {longest} or more, or say --truncate to cut contexts from the left, as lm-eval does"
            raise HarnessError(Mistake("--max-length", self.tokens, rule, remedy))
        return cut


def _num_shorter(cut: Sequence[Tokens], whole: Sequence[Tokens]) -> int:
    return sum(len(short) < len(long) for short, long in zip(cut, whole, strict=True))
