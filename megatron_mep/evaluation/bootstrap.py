"""Confidence intervals by bootstrap: documents, and seeds where there are several, are drawn again with replacement."""

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
SEED = 0
"""Of the draws, so that the same scores give the same interval."""
CELLS_AT_ONCE = 4_000_000
"""Numbers of drawn documents that are held in memory."""


def interval(
    sums: NDArray[np.floating], tokens: NDArray[np.integer], confidence: float, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The percentile interval of a mean per token, at a level of confidence.

    Args:
        sums: Of each seed and document, what its tokens add up to, `[seeds, documents]`.
        tokens: Of each document, `[documents]`.
        confidence: Share of draws within.
        resamples: Draws.
    """
    means = resampled_means(sums, tokens, resamples)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def resampled_means(
    sums: NDArray[np.floating], tokens: NDArray[np.integer], resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """The mean per token of each draw, `[resamples]`.

    A draw takes as many documents as there are, the same ones for every seed, and as many seeds as there are.
    """
    num_seeds, num_documents = sums.shape
    draw = np.random.default_rng(SEED)
    means = np.empty(resamples)
    step = max(1, CELLS_AT_ONCE // num_documents)
    for first in range(0, resamples, step):
        size = min(step, resamples - first)
        times = draw.multinomial(num_documents, np.full(num_documents, 1 / num_documents), size)  # [size, documents]
        seeds = draw.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size) / num_seeds  # [size, seeds]
        means[first : first + size] = ((times @ sums.T) * seeds).sum(axis=1) / (times @ tokens)
    return means
