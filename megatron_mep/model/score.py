"""A model as what an evaluation asks: tokens in, negative log-likelihoods out."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_mep.model.interleaved import StageModel
from megatron_mep.model.pipeline import Pipeline
from megatron_mep.parallel.groups import Groups


def scorer(model: StageModel, groups: Groups) -> Callable[[Tensor], Tensor]:
    """Tokens `[B, S + 1]` -> the negative log-likelihood in nats of each but the first, `[B, S]` fp32 on the CPU.

    Collective over the ranks that share a model, which give the same tokens and get the same result.
    """

    def score(tokens: Tensor) -> Tensor:
        model.eval()
        tokens = tokens.to(groups.device)
        if groups.pipeline_size > 1:
            return Pipeline(model, groups).score(tokens).cpu()
        with torch.no_grad():
            (whole,) = model.chunks
            return whole(tokens[:, :-1], None, None, labels=tokens[:, 1:]).float().cpu()

    return score


def sum_over_data_ranks(groups: Groups) -> Callable[[Tensor], Tensor]:
    """A sum over the data-parallel ranks of a tensor on the CPU, in its own type."""

    def total(part: Tensor) -> Tensor:
        whole = part.to(groups.device, copy=True)
        dist.all_reduce(whole, group=groups.data_group)
        return whole.cpu()

    return total
