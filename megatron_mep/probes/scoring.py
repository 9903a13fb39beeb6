"""How well a model answers: generated text searched for the answer, and the answer's tokens ranked."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.probes.sample import Sample

Read = Callable[[Tensor, int], Tensor]
"""Tokens `[B, S]`, which follow those of the calls before, and n <= S -> logits `[B, n, V]` after the last n."""
Open = Callable[[int, int], Read]
"""For so many sequences of at most so many tokens: what reads them from their beginning."""


@dataclass(frozen=True)
class Forced:
    """The answer's tokens, each predicted from the question and the right tokens before it."""

    exact: bool
    """Whether each is the likeliest: greedy generation then writes this very answer."""
    accuracy: float
    """Share of tokens that are the likeliest."""
    rank: float
    """Mean rank, the likeliest being 1; of equal logits the one of the smallest token counts as the largest."""
    reciprocal_rank: float
    nll: float
    """Mean negative log-likelihood, nats a token."""


def forced(samples: Sequence[Sample], read: Open, batch_tokens: int) -> list[Forced | None]:
    """The outcome of each sample; `None` where a logit is not finite."""
    outcomes: list[Forced | None] = [None] * len(samples)
    for batch in batches(samples, batch_tokens):
        answers = torch.tensor([samples[place].answer for place in batch])  # [B, A]
        tokens = torch.tensor([samples[place].prompt + samples[place].answer[:-1] for place in batch])
        logits = read(*tokens.shape)(tokens, answers.size(1)).cpu().double()
        for place, answer, of_sample in zip(batch, answers, logits, strict=True):
            outcomes[place] = _forced(answer, of_sample) if of_sample.isfinite().all() else None
    return outcomes


def greedy(
    samples: Sequence[Sample], read: Open, batch_tokens: int, max_new_tokens: int, end_of_document: int
) -> list[tuple[int, ...] | None]:
    """The likeliest tokens after each prompt, up to the end of the document; `None` where a logit is not finite."""
    written: list[tuple[int, ...] | None] = [None] * len(samples)
    for batch in batches(samples, batch_tokens, max_new_tokens):
        tokens = torch.tensor([samples[place].prompt for place in batch])
        reader = read(tokens.size(0), tokens.size(1) + max_new_tokens)
        steps: list[Tensor] = []
        finite = torch.ones(len(batch), dtype=torch.bool)
        ended = torch.zeros(len(batch), dtype=torch.bool)
        while len(steps) < max_new_tokens and not ended.all():
            logits = reader(tokens, 1)[:, -1].cpu()
            finite &= logits.isfinite().all(dim=-1)
            steps.append(logits.argmax(dim=-1))
            ended |= steps[-1] == end_of_document
            tokens = steps[-1][:, None]
        for place, row, whole in zip(batch, torch.stack(steps, dim=1).tolist(), finite.tolist(), strict=True):
            written[place] = _until(row, end_of_document) if whole else None
    return written


def found(sample: Sample, written: Sequence[int], tokenizer: Tokenizer) -> float:
    """The share of wanted words that stand in the text as whole words, in any order and case."""
    text = tokenizer.decode(np.asarray(written, dtype=np.int64))
    hits = [re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in sample.wanted]
    return sum(hit is not None for hit in hits) / len(hits)


def batches(samples: Sequence[Sample], batch_tokens: int, max_new_tokens: int = 0) -> Iterator[list[int]]:
    """Places of samples of one shape, as many as fit, at least one."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for place, sample in enumerate(samples):
        shapes.setdefault((len(sample.prompt), len(sample.answer)), []).append(place)
    for (prompt, answer), places in shapes.items():
        size = max(1, batch_tokens // (prompt + max(answer, max_new_tokens)))
        for start in range(0, len(places), size):
            yield places[start : start + size]


def _forced(answer: Tensor, logits: Tensor) -> Forced:
    """Of tokens `[A]` and logits `[A, V]` in fp64."""
    right = logits.gather(1, answer[:, None])  # [A, 1]
    earlier = torch.arange(logits.size(1)) < answer[:, None]
    ranks = 1 + ((logits > right) | ((logits == right) & earlier)).sum(dim=1)
    log_likelihood = right[:, 0] - logits.logsumexp(dim=1)
    first: NDArray[np.bool_] = (ranks == 1).numpy()
    return Forced(
        exact=bool(first.all()),
        accuracy=float(first.mean()),
        rank=float(ranks.double().mean()),
        reciprocal_rank=float((1 / ranks.double()).mean()),
        nll=float(-log_likelihood.mean()),
    )


def _until(tokens: list[int], end: int) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(end)] if end in tokens else tokens)
