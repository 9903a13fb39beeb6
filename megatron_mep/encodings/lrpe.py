"""Linearized relative positional encoding: a rotation of dimensions that were mixed before."""

from typing import ClassVar, Literal

import torch
from pydantic import ValidationInfo, field_validator
from torch import Tensor
from torch.nn import functional

from megatron_mep.encodings.base import LayerSizes, Weight
from megatron_mep.encodings.rotary import Rotary, geometric
from megatron_mep.encodings.rotate import rotate

Transform = Literal["identity", "householder", "dct", "odd_even"]


class Lrpe(Rotary):
    """Queries and keys are mixed by an orthogonal P and then turned as by RoPE: score = (P q)^T R^(j-i) (P k).

    P is Householder's reflection I - 2 v v^T / |v|^2, the cosine transform (DCT-II), or the permutation of the odd and
    the even dimensions. The core R turns all pairs, or the pairs of the first half of the dimensions where it is
    `mixed`, with the frequencies of a head of that size; frequencies are the paper's type a.

    As in the released code: v ~ N(0, I), one for all heads, and constant unless it is to be learned. A constant P may
    be taken into the projections of queries and keys: under softmax attention it changes where training starts, and
    not what can be learned. Vectors of each head are ours. Left out are P by Fourier transform and the complex core,
    whose scores are complex; the core of powers of a permutation; and frequencies of types b and c, which follow the
    current length. Pair m is made of dimensions m and m + D/2 where that code has 2 m and 2 m + 1: P is that of the
    code with the dimensions in this order.

    Source: "Linearized Relative Positional Encoding", arXiv:2307.09270, and its released code.
    """

    name: Literal["lrpe"] = "lrpe"
    source: ClassVar[str] = "arXiv:2307.09270 and its released code"
    formula: ClassVar[str] = "P, then turn pair m by i base^(-2m/D)"

    transform: Transform = "householder"
    """What P is; `identity` with the core `rope` is the encoding `rope`."""
    core: Literal["rope", "mixed"] = "rope"
    """Whether all of a head's dimensions turn, or the first half of them, rounded up to whole pairs."""
    vector: Literal["fixed", "learned"] = "fixed"
    """Whether Householder's v is trained."""
    vector_of_each_head: bool = False
    """Whether each head has a v of its own."""

    @field_validator("vector", "vector_of_each_head")
    @classmethod
    def _only_householder_has_one(cls, value: object, info: ValidationInfo) -> object:
        transform = info.data.get("transform")
        if value in ("learned", True) and transform not in (None, "householder"):
            raise ValueError(f"means nothing under transform={transform}, which has no vector; leave it out")
        return value

    @property
    def turns_heads_apart(self) -> bool:
        """Heads of one group reflect its keys each in a vector of its own."""
        return self.vector_of_each_head

    def layer_weights(self, sizes: LayerSizes, generator: torch.Generator) -> dict[str, Weight]:
        """Householder's `v`, `[D]` or `[H, D]`, of any length."""
        if self.transform != "householder":
            return {}
        shape = (sizes.num_heads, sizes.head_size) if self.vector_of_each_head else (sizes.head_size,)
        vector = torch.randn(shape, generator=generator, dtype=torch.float32)
        return {"v": Weight(vector, learned=self.vector == "learned", per_head=self.vector_of_each_head)}

    def series_size(self, head_size: int) -> int:
        """The dimensions that turn: all, or half of them rounded up to whole pairs."""
        return head_size if self.core == "rope" else 2 * ((head_size // 2 + 1) // 2)

    def frequencies(self, head_size: int) -> Tensor:
        """Radians by which each pair turns from one position to the next, `[head_size // 2]` in fp64."""
        turning = geometric(self.base, self.series_size(head_size))
        return functional.pad(turning, (0, head_size // 2 - len(turning)))

    def turned(self, heads: Tensor, position: Tensor, **weights: Tensor) -> Tensor:
        """Queries or keys `[S, B, H, D]` at `position [S]`, mixed and then turned."""
        angle = self.angles(position, heads.size(-1))
        return rotate(self.mixed(heads.to(angle.dtype), **weights), angle).to(heads.dtype)

    def mixed(self, heads: Tensor, **weights: Tensor) -> Tensor:
        """P of queries or keys `[..., H, D]`."""
        match self.transform:
            case "householder":
                unit = functional.normalize(weights["v"].to(heads.dtype), dim=-1)
                return heads - 2 * (heads * unit).sum(dim=-1, keepdim=True) * unit
            case "dct":
                return heads @ _in_halves(_cosine_transform(heads.size(-1))).to(heads).mT
            case "odd_even":
                return heads @ _in_halves(_odd_even(heads.size(-1))).to(heads).mT
        return heads


def _in_halves(matrix: Tensor) -> Tensor:
    """A matrix of dimensions whose pairs are 2 m and 2 m + 1, for pairs m and m + D/2."""
    order = _neighbours_apart(len(matrix))
    return matrix[order][:, order]


def _neighbours_apart(size: int) -> Tensor:
    """The even numbers below `size`, then the odd ones."""
    return torch.cat((torch.arange(0, size, 2), torch.arange(1, size, 2)))


def _cosine_transform(size: int) -> Tensor:
    """The orthonormal DCT-II as a matrix, in fp64: row k is cos(pi k (2 n + 1) / 2 D), scaled to the length 1."""
    place = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(torch.pi * place[:, None] * (2 * place + 1) / (2 * size))
    return functional.normalize(waves, dim=-1)


def _odd_even(size: int) -> Tensor:
    """The permutation that puts the two halves of the dimensions on even and odd places, as a matrix in fp64."""
    return torch.eye(size, dtype=torch.float64)[_neighbours_apart(size).argsort()]
