"""No checkpoint of numbers that are not finite: it would be of no use, and crowd out one that is."""

from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist
from torch import nn

from megatron_mep.checkpoint.files import newest
from megatron_mep.checkpoint.state import Sharded
from megatron_mep.config.errors import Mistake, TrainingError


def refuse_non_finite(template: Sharded, stored: Iterable[Sharded], root: Path) -> None:
    """A `TrainingError` on all ranks that names what holds NaN or an infinity on one of them.

    Args:
        template: Tells parameters, which are looked at, from constants, which may be infinite.
        stored: Weights and moments to be written, under the names of the template.
        root: The folder of the run's checkpoints.
    """
    mine = [
        entry.key
        for entries in stored
        for name, entry in entries.items()
        if isinstance(template[name].data, nn.Parameter) and not bool(entry.data.isfinite().all())
    ]
    everyone: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    names = sorted({name for part in everyone for name in part})
    if not names:
        return
    holders = f"{names[0]} and {len(names) - 1} more hold" if names[1:] else f"{names[0]} holds"
    kept = newest(root)
    told = f"the last whole checkpoint, {kept}, is kept" if kept else "there is no checkpoint yet"
    rule = f"takes no checkpoint that is of no use: {holders} numbers that are not finite; {told}"
    remedy = "train under a new name with a lower training.optimizer.learning_rate; the run would come here again"
    raise TrainingError(Mistake(str(root), None, rule, remedy))
