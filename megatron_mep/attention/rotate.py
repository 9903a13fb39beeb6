"""Turning queries and keys by the angles of a rotation."""

import torch
from torch import Tensor


def rotate(heads: Tensor, angle: Tensor) -> Tensor:
    """Queries or keys `[S, B, H, D]` turned by `angle [S, D // 2]`, computed in the angle's type.

    Pair m is made of dimensions m and m + D // 2, the split-half layout of GPT-NeoX and Llama.
    """
    first, second = heads.to(angle.dtype).chunk(2, dim=-1)
    cos, sin = (part[:, None, None, :] for part in (angle.cos(), angle.sin()))
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)
