"""What an exported model must compute: tokens, and the logits of the model that it was made from."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.model.decode import Decoder
from megatron_mep.model.encoded_gpt import EncodedGPT

Case = dict[str, Any]
NUM_TEXTS = 32
TEXT_TOKENS = 100
PROBES = (
    "",
    " ",
    "  two  spaces, a\ttab\nand a line\n\n  indented(x) == 42",
    "naïve café, e\u0301, ﬁ, 中文字, \U0001f600, \u2047, \u0000",
)
"""Texts beside those that random tokens spell."""


def model_cases(model: EncodedGPT, vocabulary_size: int, train_length: int) -> Iterator[Case]:
    """Tokens and logits of full passes, up to and beyond the training length, of a cache, and of unlike lengths."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randint(vocabulary_size, shape, generator=generator)

    def full(tokens: Tensor) -> Tensor:
        return _full(model, tokens, vocabulary_size)

    for name, tokens in (("full", drawn(2, train_length)), ("beyond_the_training_length", drawn(1, 2 * train_length))):
        yield {"name": name, "tokens": tokens, "logits": full(tokens)}
    prompt = max(train_length - 3, 1)
    steps = [prompt, 2, *[1] * 6]
    tokens = drawn(2, sum(steps))
    yield {"name": "cached", "tokens": tokens, "steps": steps, "logits": _cached(model, tokens, steps, vocabulary_size)}
    texts = [drawn(1, length) for length in (train_length, max(train_length // 2, 1), 1)]
    steps = [train_length, 1, 1]
    rows = [torch.cat((text, drawn(1, 2)), dim=1) for text in texts]
    logits = [_cached(model, row, [text.size(1), 1, 1], vocabulary_size) for row, text in zip(rows, texts, strict=True)]
    yield {"name": "left_padding", "rows": rows, "steps": steps, "logits": logits}


def tokenizer_cases(tokenizer: Tokenizer) -> list[Case]:
    """Texts, and the tokens that they are."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(tokenizer.vocab_size, (NUM_TEXTS, TEXT_TOKENS), generator=generator).numpy()
    texts = [*PROBES, *(tokenizer.decode(row) for row in tokens)]
    encoded = tokenizer.encode(texts)
    return [
        {"text": text, "tokens": row.tolist(), "decoded": tokenizer.decode(row)}
        for text, row in zip(texts, encoded, strict=True)
    ]


@torch.no_grad()
def _full(model: EncodedGPT, tokens: Tensor, vocabulary_size: int) -> Tensor:
    device = next(model.parameters()).device
    logits: Tensor = model(tokens.to(device), None, None, runtime_gather_output=True)
    return logits[..., :vocabulary_size].cpu()


def _cached(model: EncodedGPT, tokens: Tensor, steps: list[int], vocabulary_size: int) -> Tensor:
    decoder = Decoder(model, vocabulary_size, tokens.size(1), len(tokens))
    parts = [decoder.read(part, part.size(1), part.size(1)).cpu() for part in tokens.split(steps, dim=1)]
    return torch.cat(parts, dim=1)
