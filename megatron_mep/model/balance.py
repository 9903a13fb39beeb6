"""How evenly tensor ranks share attention: windows are long under flat slopes and short under steep ones."""

import math
from collections.abc import Sequence

import torch

from megatron_mep.attention.windows import kept_pairs, static_windows
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias
from megatron_mep.encodings.mep import Mep


def largest_score_at_unit_rms(head_size: int) -> float:
    """The bound of scaled scores between queries and keys whose rms is 1, as under `qk_norm` with gains of 1."""
    return math.sqrt(head_size)


def tensor_imbalance(
    encoding: DistanceBias,
    num_heads: int,
    tensor_size: int,
    lengths: Sequence[int],
    largest_score: float,
    epsilon: float,
) -> dict[int, float]:
    """By length, the work of the busiest tensor rank over the mean of all, at the encoding's initial weights.

    Work is counted in pairs of a query and a key inside the windows. Lengths at which these leave nothing out are
    missing: there all ranks work alike.

    Args:
        encoding: Its bias decides the windows.
        num_heads: Query heads of the whole model.
        tensor_size: Over how many ranks they are divided.
        lengths: Of sequences.
        largest_score: Bound of all scaled scores, c >= |scale q_i k_j|.
        epsilon: Share of a row's softmax that may be dropped.
    """
    weights = encoding.weights(num_heads, torch.Generator().manual_seed(0))
    distance = torch.arange(max(lengths), dtype=torch.float32)
    bound = torch.full((num_heads // tensor_size,), largest_score)
    work: dict[int, list[int]] = {length: [] for length in lengths}
    # rank by rank, as each computes it: the biases of all heads at once may fill the memory of a login node
    for rank in range(tensor_size):
        own = {
            name: weight.value.chunk(tensor_size)[rank] if weight.per_head else weight.value
            for name, weight in weights.items()
        }
        bias = encoding.of_distance(distance, **own)
        for length, pairs in work.items():
            widths = static_windows(bias[:, :length], bound, epsilon)
            pairs.append(int(kept_pairs(widths, length, length).sum()))
    every_pair = {length: num_heads * length * (length + 1) // 2 for length in lengths}
    return {
        length: max(pairs) * tensor_size / sum(pairs)
        for length, pairs in work.items()
        if sum(pairs) < every_pair[length]
    }


def balanced(encoding: DistanceBias) -> DistanceBias | None:
    """The encoding with its slopes in the balanced order; `None` where it has no order, or has that one."""
    if isinstance(encoding, Alibi | Mep) and encoding.order == "published":
        return encoding.model_copy(update={"order": "balanced"})
    return None
