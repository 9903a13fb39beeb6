"""Attention over the keys of two parts, from attention over each."""

import torch
from torch import Tensor


def join(output: Tensor, logsumexp: Tensor, part_output: Tensor, part_logsumexp: Tensor) -> None:
    """Add the keys of a part to what was attended to; outputs `[..., D]` are weighted by their share of the softmax.

    `logsumexp [...]` is the logarithm of a softmax's denominator, in fp32 or wider.
    """
    share = torch.sigmoid(part_logsumexp - logsumexp)[..., None]
    if output.dtype == share.dtype:
        output.lerp_(part_output, share)
    else:
        output.copy_(torch.lerp(output.to(share.dtype), part_output.to(share.dtype), share))
    torch.logaddexp(logsumexp, part_logsumexp, out=logsumexp)
