"""Answers to requests, each computed by itself: a text in one pass, a continuation token by token without a cache."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megatron_mep.checkpoint.files import find
from megatron_mep.data.manifest import TOKENIZER
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.loaded import loaded_whole
from megatron_mep.parallel.groups import Groups
from megatron_mep.run import RunConfig


class ByHand:
    """The last checkpoint of a run, on one process."""

    def __init__(self, run: RunConfig, groups: Groups) -> None:
        self._tokenizer = Tokenizer.load(Path(run.data.folder) / TOKENIZER)
        self._model = loaded_whole(run, self._tokenizer, find(run.folder), groups, torch.float32)

    def score(self, context: str, continuation: str) -> tuple[float, bool]:
        """The log-likelihood of a continuation, and whether it is the greedy one; spaces between are a part of it."""
        whole = self._encoded(context + continuation)
        return self._score(whole, len(whole) - len(self._encoded(context.rstrip())))

    def rolled(self, text: str, max_length: int) -> float:
        """The log-likelihood of a text in windows of so many tokens, of which the last one reaches back."""
        tokens = [self._tokenizer.eod, *self._encoded(text)]
        total, start = 0.0, 1
        while start < len(tokens):
            stop = min(start + max_length, len(tokens))
            total += self._score(tokens[max(0, stop - max_length - 1) : stop], stop - start)[0]
            start = stop
        return total

    def written(self, prompt: str, until: str, max_tokens: int) -> str:
        """What follows a prompt, before a text."""
        tokens, written, text = self._encoded(prompt), [], ""
        while len(written) < max_tokens and until not in text:
            token = int(self._logits([*tokens, *written])[-1].argmax())
            if token == self._tokenizer.eod:
                break
            written.append(token)
            text = self._tokenizer.decode(np.array(written))
        return text.partition(until)[0]

    def _encoded(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode([text])[0].tolist()
        return tokens

    def _score(self, tokens: list[int], num_scored: int) -> tuple[float, bool]:
        after, wanted = self._logits(tokens[:-1])[-num_scored:], torch.tensor(tokens[-num_scored:])
        scores = after.log_softmax(-1)[torch.arange(num_scored), wanted]
        return scores.sum().item(), bool((after.argmax(-1) == wanted).all())

    @torch.no_grad()
    def _logits(self, tokens: list[int]) -> Tensor:
        """`[S, V]` in fp64."""
        after: Tensor = self._model(torch.tensor([tokens]), None, None, runtime_gather_output=True)
        return after[0, :, : self._tokenizer.vocab_size].double()
