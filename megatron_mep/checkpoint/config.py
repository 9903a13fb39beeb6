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
