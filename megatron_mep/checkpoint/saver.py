"""The checkpoints of a run: written at once, or behind the training that goes on."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from megatron_mep.checkpoint.attempt import Attempt
from megatron_mep.checkpoint.config import CheckpointConfig
from megatron_mep.checkpoint.draft import Draft, Written
from megatron_mep.checkpoint.progress import Progress
from megatron_mep.checkpoint.save import take_checkpoint
from megatron_mep.checkpoint.state import Sharded
from megatron_mep.parallel.groups import Groups

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


class Saver:
    """Saves a run, one checkpoint at a time; what is being written when an error ends the run is given up.

    The arguments are those of `take_checkpoint`.
    """

    def __init__(
        self,
        attempt: Attempt,
        engine: "DeepSpeedEngine",
        template: Sharded,
        run_yaml: str,
        config: CheckpointConfig,
        groups: Groups,
    ) -> None:
        self._attempt, self._engine, self._template = attempt, engine, template
        self._run_yaml, self._config, self._groups = run_yaml, config, groups
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._unwanted = Event()
        self._behind: tuple[Draft, Future[Written]] | None = None

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._unwanted.set()
            # the thread writes one more tensor at most
            self._thread.shutdown()

    def save(self, progress: Progress) -> None:
        """Takes a checkpoint, after the one before is in place; collective."""
        self.finish()
        draft = take_checkpoint(
            self._attempt, self._engine, self._template, progress, self._run_yaml, self._config, self._groups
        )
        if self._config.asynchronous:
            self._behind = draft, self._thread.submit(draft.write, self._groups.rank, self._unwanted.is_set)
        else:
            draft.publish(draft.write(self._groups.rank))

    def publish(self) -> None:
        """Puts the checkpoint in place that was written behind, where all ranks are done with it; collective."""
        if self._behind is None:
            return
        _, written = self._behind
        done = torch.tensor(int(written.done()), device=self._groups.device)
        dist.all_reduce(done, dist.ReduceOp.MIN)
        if done:
            self.finish()

    def finish(self) -> None:
        """Waits until the checkpoint is in place that is being written behind, where there is one; collective."""
        if self._behind is not None:
            draft, written = self._behind
            self._behind = None
            draft.publish(written.result())
