"""How likely continuations are, and whether greedy generation would write them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_mep.harness.batches import Tokens, batches

Logits = Callable[[Tensor], Tensor]
"""Tokens `[B, S]` -> the logits of the token after each, `[B, S, V]`."""
Score = tuple[float, bool]
"""A log-likelihood in nats, and whether each token is the likeliest."""


@dataclass(frozen=True)
class Pair:
    """A text, and one whose likelihood after it is asked for; neither is empty."""

    context: Tokens
    continuation: Tokens

    @property
    def read(self) -> Tokens:
        """What a model reads of both: all but the last token."""
        return (*self.context, *self.continuation[:-1])


def scores(pairs: Sequence[Pair], logits: Logits, batch_tokens: int) -> list[Score]:
    """The score of each pair; a text that several of them make the model read is read once."""
    asked: dict[Tokens, list[int]] = {}
    for place, pair in enumerate(pairs):
        asked.setdefault(pair.read, []).append(place)
    found: dict[int, Score] = {}
    for batch in batches(asked, batch_tokens):
        for text, after in zip(batch, logits(torch.tensor(batch)), strict=True):
            for place in asked[text]:
                found[place] = _score(pairs[place].continuation, after)
    return [found[place] for place in range(len(pairs))]


def _score(continuation: Tokens, after: Tensor) -> Score:
    """Of a continuation of n tokens, the last n of the logits `[S, V]`."""
    tokens = torch.tensor(continuation, device=after.device)
    logits = after[-len(tokens) :].float()
    log_likelihood = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=1)
    return float(log_likelihood.double().sum()), bool((logits.argmax(dim=1) == tokens).all())
