"""Scores that grow with the logarithm of how much a query sees."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.placement import Placed
from megatron_mep.extrapolation.base import Trick, changed

FAR = 2.0**20
"""A position beyond all training lengths."""
GROWN = "needs an encoding under which scores do not grow with the position already"


class LogN(Trick):
    """The scores of the query at position i are multiplied by max(1, log(i + 1) / log L), L the training length.

    So the softmax does not flatten as it spreads over more keys. What sums tokens or mixes scores acts as before: only
    the product of queries and keys grows.

    Source: "Overcoming a Theoretical Limitation of Self-Attention", arXiv:2202.12172, for log n; its ratio to log L and
    the bound 1 are those of BiPE's released code (arXiv:2401.16421).
    """

    name: Literal["log_n"] = "log_n"
    source: ClassVar[str] = "arXiv:2202.12172; arXiv:2401.16421, code"
    formula: ClassVar[str] = "scores max(1, log(i + 1) / log L)"

    def against(self, encoding: Encoding) -> str | None:
        """It needs positions that count tokens, and scores that do not grow with them yet."""
        if isinstance(encoding, Placed):
            return "needs an encoding whose positions count tokens"
        # under mesa the scores of the last chunk do so already, whatever tricks came after it
        inside: Encoding | None = encoding
        while inside is not None:
            if getattr(inside, "log_n", False):
                return GROWN
            inside = getattr(inside, "inner", None)
        factor = encoding.query_factor(torch.tensor([0.0, FAR]))
        if factor is not None and factor[0] != factor[1]:
            return GROWN
        return None

    def applied(self, encoding: Encoding, train_length: int) -> Encoding:
        """The encoding with a factor of the scores."""
        # of a single token the logarithm is zero
        log_length = math.log(max(train_length, 2))

        def query_factor(_: Encoding, position: Tensor) -> Tensor:
            factor = (torch.log1p(position) / log_length).clamp(min=1)
            before = encoding.query_factor(position)
            return factor if before is None else factor * before

        return changed(encoding, self, query_factor=query_factor)
