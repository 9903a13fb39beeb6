"""What the attention of a whole model computed and dropped, over all ranks."""

import torch
import torch.distributed as dist
from torch import nn

from megatron_mep.attention.work import Work
from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.parallel.groups import Groups


def take_attention_work(model: nn.Module, groups: Groups) -> Work:
    """What all layers counted since the last call; nothing where no backend drops keys. Collective over all ranks."""
    parts = [layer.work.taken() for layer in encoded_layers(model)]
    counts = any(layer.backend.counts_work for layer in encoded_layers(model))
    # another stage may have layers of another kind
    if not counts and groups.pipeline_size == 1:
        return Work()
    pairs = torch.tensor(
        [[float(part.kept_pairs), float(part.causal_pairs)] for part in parts],
        dtype=torch.float64,
        device=groups.device,
    ).sum(0)
    dropped = torch.tensor([part.dropped for part in parts], dtype=torch.float64, device=groups.device).max()
    dist.all_reduce(pairs)
    dist.all_reduce(dropped, op=dist.ReduceOp.MAX)
    kept_pairs, causal_pairs = (int(number) for number in pairs.tolist())
    return Work(kept_pairs, causal_pairs, float(dropped))
