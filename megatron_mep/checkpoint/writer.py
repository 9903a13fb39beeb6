"""The files of a checkpoint in Megatron-core's format, written by this process itself.

Megatron-core starts a process for every file, also where it waits for them. A fork of a process with threads of gloo
or CUDA may hang, and what a rank has started goes on writing when the rank is killed. A thread ends with its process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.serialization import get_default_save_common_strategy
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint import Metadata
from torch.distributed.checkpoint.filesystem import SerializationFormat, _write_item
from torch.distributed.checkpoint.storage import WriteResult

from megatron_mep.checkpoint.state import Sharded

FORMAT = ("torch_dist", 1)


def write_in_this_process() -> None:
    """Has the writer keep its results in this process, which writes and then reads them.

    Megatron-core keeps them in a server process, for writers that run in the background. We have none; and the server
    would import the whole program once more, and outlive a rank that is killed.
    """
    if filesystem_async._results_queue is None:
        filesystem_async._results_queue = SimpleQueue()


@dataclass(frozen=True)
class Files:
    """What this rank writes of a checkpoint, as all ranks together have planned it; nothing is written yet."""

    folder: Path
    _writer: FileSystemWriterAsync
    _metadata: Metadata | None
    """Where each tensor lies, on rank 0."""
    _common: dict[str, Any]
    """What is not divided; we have none, and Megatron-core's reader wants the file."""

    @classmethod
    def planned(cls, state: Sharded, folder: Path) -> "Files":
        """The files of this rank's part of the state, held in host memory until they are written; collective."""
        write_in_this_process()
        divided, common = save_preprocess(state)
        writer, metadata = _Plan(*FORMAT, thread_count=1).async_save(divided, folder).async_fn_args
        return cls(folder, writer, metadata, common)

    def write(self, is_unwanted: Callable[[], bool]) -> list[WriteResult]:
        """Writes this rank's files, and stops where they are not wanted any more; in any thread.

        An `OSError` tells why it cannot be done.
        """
        results: list[WriteResult] = []
        for path, key, (objects, tensors) in self._writer.write_buckets:
            with _errors_of_streams(), Path(path).open("wb") as stream:
                for item, data in (*objects, *tensors):
                    if is_unwanted():
                        return results
                    transforms, form = self._writer.transforms, SerializationFormat.TORCH_SAVE
                    results.append(_write_item(transforms, stream, data, item, key, form))
        return results

    def complete(self, results: Sequence[list[WriteResult]]) -> None:
        """Writes what says where each rank has written what; on rank 0, once all ranks are done."""
        self._writer.finish(self._metadata, results)
        with _errors_of_streams():
            get_default_save_common_strategy().save_common(self._common, self.folder)
        save_config(CheckpointingConfig(*FORMAT), str(self.folder))


class _Plan(TorchDistSaveShardedStrategy):
    """Megatron-core's plan of who writes what, without its writing."""

    def _get_save_and_finalize_callbacks(self, writer: FileSystemWriterAsync, planned: Any) -> AsyncRequest:
        _, metadata, _ = planned
        return AsyncRequest(None, (writer, metadata), [])


@contextmanager
def _errors_of_streams() -> Iterator[None]:
    """torch hides what a stream has raised behind an error of its own."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
