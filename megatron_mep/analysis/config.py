"""The `analysis` section of a run file: at which lengths it is asked what a model uses, and on how much text."""

from pydantic import Field

from megatron_mep.config.base import Config
from megatron_mep.config.lengths import Lengths

DEFAULT_MULTIPLES = (1, 4, 16)


class AnalysisConfig(Config):
    """What a checkpoint uses of the tokens before the one that it predicts."""

    lengths: Lengths | None = None
    """Tokens of a window, ascending; by default 1, 4 and 16 times the training length."""
    windows: int = Field(default=16, gt=0)
    """Windows of held-out text at each length, which end at the same tokens whatever their length."""
    share: float = Field(default=0.99, gt=0, lt=1)
    """Of the gradient, how much a receptive field holds."""
    batch_tokens: int = Field(default=8192, gt=0)
    """Tokens of one pass, at least one window; memory grows with it, what is measured stays the same."""

    def lengths_of(self, train_length: int) -> tuple[int, ...]:
        """The lengths for a training length."""
        return self.lengths or tuple(train_length * multiple for multiple in DEFAULT_MULTIPLES)
