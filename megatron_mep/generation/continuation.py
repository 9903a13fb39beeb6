"""A prompt, continued token by token."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from megatron_mep.generation.config import GenerationConfig
from megatron_mep.generation.sampling import next_tokens

Read = Callable[[Tensor], Tensor]
"""Tokens `[1, S]`, which follow those of the calls before -> logits `[1, V]` of the token after them."""

End = Literal["length", "document"]
"""Why a continuation ended: after max_new_tokens, or with the document."""


@dataclass(frozen=True)
class Continuation:
    """What followed a prompt, and how fast."""

    tokens: tuple[int, ...]
    """Without the end of the document."""
    end: End
    prefill_tokens_per_s: float
    """Tokens of the prompt by the time until the first token was chosen."""
    decode_tokens_per_s: float | None
    """Tokens after the first by the time they took; `None` where there are none."""


def continued(
    prompt: Sequence[int],
    read: Read,
    options: GenerationConfig,
    end_of_document: int,
    heard: Callable[[int], None] = lambda _: None,
) -> Continuation:
    """Continues a prompt, and tells `heard` every token as it is chosen."""
    generator = torch.Generator().manual_seed(options.seed)
    tokens: list[int] = []
    end: End = "length"
    unread = list(prompt)
    started_s = first_s = now_s = time.perf_counter()
    while len(tokens) < options.max_new_tokens:
        token = int(next_tokens(read(torch.tensor([unread])), options, generator))
        now_s = time.perf_counter()
        first_s = first_s if tokens else now_s
        if token == end_of_document and options.stop_at_end:
            end = "document"
            break
        tokens.append(token)
        heard(token)
        unread = [token]
    num_steps = len(tokens) - (end == "length")
    return Continuation(
        tokens=tuple(tokens),
        end=end,
        prefill_tokens_per_s=len(prompt) / (first_s - started_s),
        decode_tokens_per_s=num_steps / (now_s - first_s) if num_steps else None,
    )
