"""Turning queries and keys by the angles of a rotation."""

import torch
from torch import Tensor


def rotate(heads: Tensor, angle: Tensor) -> Tensor:
    """Queries or keys `[S, B, H, D]` turned by `angle [S, D // 2]` or `[B, S, D // 2]`, computed in the angle's type.

    Pair m is made of dimensions m and m + D // 2, the split-half layout of GPT-NeoX and Llama.
    """
    beside = angle[:, None, None] if angle.dim() == 2 else angle.transpose(0, 1)[:, :, None]
    return turn(heads, beside.cos(), beside.sin())


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same by cosines and sines that meet `[S, B, H, D // 2]`; they need not be those of one angle."""
    first, second = heads.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)
