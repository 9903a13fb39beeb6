"""How Megatron-core's writer of checkpoints hands its results over."""

from queue import SimpleQueue

from megatron.core.dist_checkpointing.strategies import filesystem_async


def write_in_this_process() -> None:
    """Has the writer keep its results in this process, which writes and then reads them.

    Megatron-core keeps them in a server process, for writers that run in the background. We have none; and the server
    would import the whole program once more, and outlive a rank that is killed.
    """
    if filesystem_async._results_queue is None:
        filesystem_async._results_queue = SimpleQueue()
