"""A question that a model is asked, and what a right answer is."""

from megatron_mep.config.base import Config
from megatron_mep.probes.material import Tokens


class Sample(Config):
    """One question."""

    prompt: Tokens
    answer: Tokens
    """What a perfect model writes next; a teacher-forced model is given it."""
    wanted: tuple[str, ...] = ()
    """What generated text is searched for, as whole words; empty where only the tokens of the answer count."""


class UnfitLengthError(Exception):
    """A sample of the wanted length cannot be made."""

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        """The shortest length that would do, or the longest."""
        super().__init__(least, most)
        self.least, self.most = least, most
