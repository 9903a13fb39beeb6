"""The `checkpoint` section of a run file."""

from pydantic import NonNegativeInt, PositiveInt

from megatron_mep.config.base import Config


class CheckpointConfig(Config):
    """When checkpoints are written and which are kept; the last step is always written."""

    interval: NonNegativeInt = 1000
    """Steps between two checkpoints; 0 writes only the last."""
    keep: PositiveInt | None = None
    """How many of the newest checkpoints stay; all where absent."""
    compare_replicas: bool = True
    """Refuses to write where ranks that should hold a weight or moment alike, bit by bit, do not."""
    asynchronous: bool = False
    """Writes behind the training that goes on, from copies: until they are written, host memory holds 12 bytes for each
    weight of the model, divided over the ranks that hold it alike. A checkpoint is in place some steps after its own.
    """
