"""Tensors that travel around the ring of context ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from megatron_mep.parallel.context import Context


class Passing:
    """Tensors on their way to the next rank, while those of the rank before arrive; nothing may change them meanwhile.

    Collective over the context ranks.
    """

    def __init__(self, tensors: Sequence[Tensor], context: Context) -> None:
        assert context.group is not None, "a rank alone has no next one"
        following, before = (
            distributed.get_global_rank(context.group, (context.rank + step) % context.size) for step in (1, -1)
        )
        # kept until they have left
        self._leaving = [tensor.contiguous() for tensor in tensors]
        self._arriving = [torch.empty_like(tensor) for tensor in self._leaving]
        operations = [
            operation
            for leaving, arriving in zip(self._leaving, self._arriving, strict=True)
            for operation in (
                distributed.P2POp(distributed.isend, leaving, following, context.group),
                distributed.P2POp(distributed.irecv, arriving, before, context.group),
            )
        ]
        self._work = distributed.batch_isend_irecv(operations)

    def arrived(self) -> list[Tensor]:
        """Those of the rank before, once they are all here."""
        for work in self._work:
            work.wait()
        return self._arriving
