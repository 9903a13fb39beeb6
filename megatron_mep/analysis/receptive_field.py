"""How far back the gradient of a prediction reaches: the empirical receptive field.

Source: the cumulative normalized gradient of "Dissecting Transformer Length Extrapolation via the Lens of Receptive
Field Analysis", arXiv:2212.10356; reconstructed. With g_m the gradient of the last token's loss with respect to the
embedding e_m of the token at position m,

    s_m = |g_m| / sum_n |g_n|,    c(d) = sum of s_m over the tokens at distance <= d from the last one that is read,

and the field is the smallest d at which c(d) reaches a share of 0.99.
"""

import numpy as np
from numpy.typing import NDArray


def cumulative_shares(norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """c at distances 0 ... L - 1, of the norms of gradients at positions 0 ... L - 1: both `[B, L]`.

    NaN where a gradient is not finite, or none is above zero.
    """
    by_distance = norms[:, ::-1]
    with np.errstate(invalid="ignore"):
        shares: NDArray[np.float64] = np.cumsum(by_distance / by_distance.sum(axis=-1, keepdims=True), axis=-1)
    return shares


def field_of(cumulative: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """The smallest distance at which c `[..., L]` reaches a share, `[...]`; c ends at 1 but for rounding."""
    before = cumulative < share
    before[..., -1] = False
    fields: NDArray[np.int64] = before.sum(axis=-1)
    return fields
