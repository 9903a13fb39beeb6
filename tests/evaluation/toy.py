"""A model small enough to redo by hand: the NLL of a token is a function of all that stands before it in its row."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

VOCABULARY = 50


def stream_of(num_tokens: int) -> NDArray[np.int64]:
    return np.random.default_rng(7).integers(0, VOCABULARY, num_tokens)


def nll_of(context: list[int], target: int) -> float:
    """In eighths of a nat, so that fp32 holds it and fp64 sums are exact; another context gives another value."""
    mixed = sum((place + 1) * token for place, token in enumerate(reversed(context)))
    return ((13 * mixed + 7 * target + 31 * len(context)) % 1009) / 8


def score(tokens: Tensor) -> Tensor:
    rows = [[nll_of(row[:place], row[place]) for place in range(1, len(row))] for row in tokens.tolist()]
    return torch.tensor(rows, dtype=torch.float32)
