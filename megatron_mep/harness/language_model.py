"""A checkpoint's model as lm-evaluation-harness asks it."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from megatron_mep.config.errors import CheckpointError, Mistake
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.harness.batches import Tokens
from megatron_mep.harness.greedy import until_of
from megatron_mep.harness.length import HarnessError, MaxLength
from megatron_mep.harness.scoring import Logits, Pair, Score, scores
from megatron_mep.harness.share import Share
from megatron_mep.harness.writing import Until, continuations
from megatron_mep.probes.scoring import Open

Encoded = tuple[tuple[str, str] | None, list[int], list[int]]
"""A pair of texts, or `None` where it is a window of a text, and the tokens of its context and continuation."""


@dataclass(frozen=True)
class Asked:
    """A model as requests are put to it; its calls are collective over the tensor ranks."""

    logits: Logits
    opened: Open
    batch_tokens: int
    """Tokens in one forward pass, at least those of one request."""
    checkpoint: str
    facts: dict[str, Any]
    """What the results say of it."""


class MepLM(TemplateLM):
    """Answers the requests of tasks, all of them on every rank, each of which computes a share.

    The harness so sees a single process, whatever the layout. Texts begin after an end of document.
    """

    def __init__(
        self, asked: Callable[[], Asked], tokenizer: Tokenizer, max_length: MaxLength, share: Share | None = None
    ) -> None:
        """`asked` gives the model; it is called alike on every rank, once requests are known to be as they must be."""
        super().__init__()
        self._asked, self._tokenizer, self._max_length, self._share = asked, tokenizer, max_length, share or Share()
        self.num_truncated = 0
        """Requests whose context was cut, so far."""

    @property
    def eot_token_id(self) -> int:
        """The end of a document, which also stands for a context that is empty."""
        return self._tokenizer.eod

    @property
    def max_length(self) -> int:
        """The most tokens that are read at once."""
        return self._max_length.tokens

    @property
    def tokenizer_name(self) -> str:
        """Tells the tokenizer from all others."""
        return self._tokenizer.sha256

    def get_model_info(self) -> dict[str, Any]:
        """What the results say of the model, and of what was done to requests."""
        length = self._max_length
        told = {"max_length": length.tokens, "truncate": length.truncate, "truncated_requests": self.num_truncated}
        return {**self._asked().facts, **told}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:  # noqa: ARG002
        """The tokens of a text, to which none are added."""
        tokens: list[int] = self._tokenizer.encode([string])[0].tolist()
        return tokens

    def loglikelihood_rolling(self, requests: list[Instance], **_: Any) -> list[float]:
        """The log-likelihood of each text, in windows of the most tokens one after the other."""
        windows = [list(self._windows(self.tok_encode(request.args[0]))) for request in requests]
        found = iter(self._loglikelihood_tokens([window for of_text in windows for window in of_text]))
        return [sum(next(found)[0] for _ in of_text) for of_text in windows]

    def generate_until(self, requests: list[Instance], **_: Any) -> list[str]:
        """The greedy continuation of each context, up to the first text of `until` and `max_gen_toks` tokens."""
        self._check_alike([request.args for request in requests])
        ends = [until_of(request.args[1]) for request in requests]
        prompts = [tuple(self.tok_encode(request.args[0])) or (self.eot_token_id,) for request in requests]
        prompts = self._fitted(prompts, [until.max_tokens for until in ends])
        asked = self._asked()
        found: dict[int, str | None] = {}
        for until in dict.fromkeys(ends):
            places = [place for place, end in enumerate(ends) if end == until]
            alike = [prompts[place] for place in places]
            written = partial(self._written, asked, until)
            found.update(zip(places, self._share.answered(alike, alike, written), strict=True))
        texts = [found[place] for place in range(len(requests))]
        whole = [text for text in texts if text is not None]
        if len(whole) < len(texts):
            raise self._not_finite(len(texts) - len(whole))
        return whole

    def _written(self, asked: Asked, until: Until, prompts: list[Tokens]) -> list[str | None]:
        return continuations(prompts, until, asked.opened, self._tokenizer, asked.batch_tokens)

    def _loglikelihood_tokens(self, requests: Sequence[Encoded], **_: Any) -> list[Score]:
        self._check_alike(requests)
        for texts, _context, continuation in requests:
            if not continuation:
                rule = f"has a request without tokens to score: {texts}"
                raise HarnessError(Mistake("--tasks", None, rule, "leave the task out"))
        num_more = [len(continuation) - 1 for *_, continuation in requests]
        contexts = self._fitted([tuple(context) for _, context, _ in requests], num_more)
        pairs = [Pair(context, tuple(request[2])) for context, request in zip(contexts, requests, strict=True)]
        asked = self._asked()
        found = self._share.answered(
            pairs, [pair.read for pair in pairs], lambda own: scores(own, asked.logits, asked.batch_tokens)
        )
        num_lost = sum(not math.isfinite(log_likelihood) for log_likelihood, _ in found)
        if num_lost:
            raise self._not_finite(num_lost)
        return found

    def _windows(self, tokens: list[int]) -> list[Encoded]:
        """Windows that score every token once, with as much context as the harness gives it."""
        windows = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
        return [(None, *make_disjoint_window(window)) for window in windows]

    def _fitted(self, contexts: list[Tokens], num_more: list[int]) -> list[Tokens]:
        fitted = self._max_length.fitted(contexts, num_more)
        self.num_truncated += sum(len(cut) < len(whole) for cut, whole in zip(fitted, contexts, strict=True))
        return fitted

    def _check_alike(self, requests: Sequence[Any]) -> None:
        """Refuses what ranks ask unlike one another: they would wait for each other, or answer something else."""
        digest = hashlib.sha256(repr(requests).encode()).digest()
        if len(set(self._share.of_everyone(digest))) > 1:
            rule = "ask other questions on other ranks: their data differ, or are drawn without --seed"
            raise HarnessError(Mistake("--tasks", None, rule, "give every node the same data, or use one process"))

    def _not_finite(self, count: int) -> CheckpointError:
        rule = f"gives logits that are not finite for {count} requests"
        return CheckpointError(Mistake(self._asked().checkpoint, None, rule, "take an earlier checkpoint"))
