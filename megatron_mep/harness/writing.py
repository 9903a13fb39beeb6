"""Greedy continuations of prompts, up to the first of some texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.harness.batches import Tokens, batches
from megatron_mep.probes.scoring import Open, Read


@dataclass(frozen=True)
class Until:
    """Where a continuation ends, if its document does not end before."""

    texts: tuple[str, ...]
    """It ends before the first of these."""
    max_tokens: int

    def cut(self, text: str) -> str:
        """What stands before the first of the texts."""
        for end in self.texts:
            text = text.partition(end)[0]
        return text


def continuations(
    prompts: Sequence[Tokens], until: Until, opened: Open, tokenizer: Tokenizer, batch_tokens: int
) -> list[str | None]:
    """The text that follows each prompt; `None` where a logit was not finite."""
    found: dict[Tokens, str | None] = {}
    for batch in batches(dict.fromkeys(prompts), batch_tokens, until.max_tokens):
        read = opened(len(batch), len(batch[0]) + until.max_tokens)
        found.update(zip(batch, _continued(batch, until, read, tokenizer), strict=True))
    return [found[prompt] for prompt in prompts]


def _continued(batch: Sequence[Tokens], until: Until, read: Read, tokenizer: Tokenizer) -> list[str | None]:
    """Those of prompts of one length, token by token in step until the last of them has ended."""
    written: list[list[int]] = [[] for _ in batch]
    texts: list[str | None] = [""] * len(batch)
    going = set(range(len(batch)))
    tokens = torch.tensor(batch)
    for _ in range(until.max_tokens):
        logits = read(tokens, 1)[:, -1].cpu()
        finite = logits.isfinite().all(dim=-1)
        chosen = logits.argmax(dim=-1)
        for place in tuple(going):
            if not finite[place] or chosen[place] == tokenizer.eod:
                texts[place] = texts[place] if finite[place] else None
                going.remove(place)
                continue
            written[place].append(int(chosen[place]))
            text = tokenizer.decode(np.array(written[place]))
            texts[place] = until.cut(text)
            if texts[place] != text:
                going.remove(place)
        if not going:
            break
        tokens = chosen[:, None]
    return texts
