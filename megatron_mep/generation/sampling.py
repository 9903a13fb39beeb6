"""The next token, chosen from logits: the likeliest, or drawn from a part of the distribution."""

import torch
from torch import Tensor

from megatron_mep.generation.config import GenerationConfig


def next_tokens(logits: Tensor, options: GenerationConfig, generator: torch.Generator) -> Tensor:
    """Finite logits `[B, V]` -> tokens `[B]`, both chosen and returned on the CPU.

    A seed so means the same on every device, and ranks that hold the same logits and generator state choose alike. Of
    equal logits the one of the smallest token counts as the largest.
    """
    logits = logits.cpu().double()
    if options.temperature == 0:
        return logits.argmax(dim=-1)
    return torch.multinomial(distribution(logits, options), num_samples=1, generator=generator)[:, 0]


def distribution(logits: Tensor, options: GenerationConfig) -> Tensor:
    """The probabilities `[B, V]` that a temperature above 0, top_k and then top_p leave of logits `[B, V]`.

    Top-p, or nucleus, sampling: "The Curious Case of Neural Text Degeneration", arXiv:1904.09751, section 3.1.
    """
    # the largest becomes 0 first: a small temperature would take it beyond fp64
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / options.temperature
    ordered, tokens = scaled.sort(dim=-1, descending=True, stable=True)
    if options.top_k is not None:
        ordered[:, options.top_k :] = -torch.inf
    shares = ordered.softmax(dim=-1)
    if options.top_p < 1:
        before = shares.cumsum(dim=-1) - shares
        shares = shares.masked_fill(before >= options.top_p, 0)
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return torch.zeros_like(shares).scatter(-1, tokens, shares)
