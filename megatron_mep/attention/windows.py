"""How far back a bias lets attention see: windows that drop no more than a stated share of any row's softmax.

A window W_h keeps the keys at distances 0 .. W_h - 1. With K(d) = exp(b_h(d)) and |scale q_i k_j| <= c, what a row
drops is at most the share

    e^(2 c) sum_{d >= W} K(d) / sum_{d < W} K(d)

of its softmax, and its output moves by at most twice that times the largest norm of a value. Nothing is assumed of the
bias: one without a tail that decays, or that learned to lose it, gets windows as long as the sequence.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

ROUNDING = 1e-5
"""By how much lengths of queries and keys are rounded up."""


def log_tails(bias: Tensor) -> Tensor:
    """`log sum_{t >= d} exp(bias[h, t])` at d = 0 .. N, of a bias by distance `[H, N]`: `[H, N + 1]` fp64."""
    tails = torch.logcumsumexp(bias.double().flip(1), 1).flip(1)
    # what is no number proves nothing
    return functional.pad(
        tails.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf), (0, 1), value=-torch.inf
    )


def log_heads(bias: Tensor) -> Tensor:
    """`log sum_{t < d} exp(bias[h, t])` at d = 0 .. N, of a bias by distance `[H, N]`: `[H, N + 1]` fp64."""
    heads = torch.logcumsumexp(bias.double(), 1)
    return functional.pad(heads, (1, 0), value=-torch.inf)


def score_bound(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """`c_h >= |scale q_i k_j|` of every head over all samples and pairs, by Cauchy-Schwarz: `[H]` fp64.

    Args:
        query: `[B, H, Q, D]`.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        scale: Factor of the scores.
    """
    longest_query, longest_key = (
        torch.linalg.vector_norm(tensor, dim=-1, dtype=torch.promote_types(tensor.dtype, torch.float32)).amax((0, 2))
        for tensor in (query, key)
    )
    longest_key = longest_key.double().repeat_interleave(query.size(1) // key.size(1))
    return abs(scale) * (1 + ROUNDING) * longest_query.double() * longest_key


def static_windows(bias: Tensor, bound: Tensor, epsilon: float) -> Tensor:
    """The smallest windows that drop at most `epsilon` of any row's softmax: `[H]` int64 in 1 .. N.

    Args:
        bias: `[H, N]` by distance.
        bound: `[H]`, c_h >= |scale q_i k_j| of all pairs of the head.
        epsilon: Share of a row's softmax; 0 drops only distances whose bias is -inf.
    """
    log_epsilon = math.log(epsilon) if epsilon else -math.inf
    # at W = 1 .. N; at the last nothing is left to drop. A bound that is no number allows none of them
    dropped = 2 * bound.double()[:, None] + log_tails(bias)[:, 1:] - log_heads(bias)[:, 1:]
    return (1 + (~(dropped <= log_epsilon)).sum(1)).clamp(max=bias.size(1))


def kept_pairs(windows: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """How many pairs of a query and a key that it sees lie inside the windows `[H]`: `[H]` int64.

    The queries stand at the last of the positions.
    """
    first = num_keys - num_queries
    window = windows.clamp(max=num_keys)
    # the query at position i keeps min(i + 1, W) keys
    ramp = (window - first).clamp(min=0)
    return ramp * first + ramp * (ramp + 1) // 2 + (num_queries - ramp) * window
