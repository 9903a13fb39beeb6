"""The `probes` section of a run file: what a checkpoint is asked, at which lengths, and how often."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from megatron_mep.config.base import Config
from megatron_mep.config.lengths import Length
from megatron_mep.evaluation.config import DEFAULT_MULTIPLES
from megatron_mep.formal import AnyFormalTask
from megatron_mep.probes.aggregation import CommonWords, FrequentWords, VariableTracking
from megatron_mep.probes.retrieval import Needles, Passkey

AnyRetrieval = Annotated[
    Passkey | Needles | VariableTracking | CommonWords | FrequentWords, Field(discriminator="name")
]
Mode = Literal["greedy", "forced"]


class RetrievalConfig(Config):
    """Answers that stand in a long text made of the corpus's validation split."""

    tasks: tuple[AnyRetrieval, ...] = (Passkey(), Needles())
    """Which tasks, each with its options."""
    lengths: tuple[Length, ...] | None = Field(default=None, min_length=1)
    """Tokens of a prompt and of what may be generated after it; by default 1, 2, 4, 8, 16 times the training length."""
    depths: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(0.0, 0.25, 0.5, 0.75, 1.0), min_length=1)
    """Where in the text the answer stands, as a share of it; for tasks whose answer stands in one place."""
    samples: int = Field(default=8, gt=0)
    """Questions at each length and depth."""
    modes: tuple[Mode, ...] = Field(default=("greedy", "forced"), min_length=1)
    """`greedy`: generated text is searched for the answer. `forced`: the answer is read, and each token ranked."""

    def lengths_of(self, train_length: int) -> tuple[int, ...]:
        """The lengths for a training length."""
        return self.lengths or tuple(train_length * multiple for multiple in DEFAULT_MULTIPLES)


class FormalConfig(Config):
    """Exercises of length generalisation, see `data.source.kind=formal`, which makes a corpus of them."""

    tasks: tuple[AnyFormalTask, ...] = ()
    """Which tasks; those that the model was trained on."""
    lengths: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(10, 20, 40, 80, 160), min_length=1)
    """Lengths of exercises, in what each task counts: letters, digits, operands."""
    samples: int = Field(default=100, gt=0)
    """Exercises of each length."""


class ProbesConfig(Config):
    """Questions with known answers, by length."""

    retrieval: RetrievalConfig = RetrievalConfig()
    """Answers that stand in a long text."""
    formal: FormalConfig = FormalConfig()
    """Answers that follow from a rule."""
    seed: int = Field(default=0, ge=0)
    """Decides what is asked, at every length alike."""
    batch_tokens: int = Field(default=8192, gt=0)
    """Tokens of one forward pass, at least one question; memory grows with it, scores stay the same."""
    prefill_chunk: int = Field(default=512, gt=0)
    """Tokens of each question that pass through the model at once."""

    @field_validator("retrieval")
    @classmethod
    def _modes_once(cls, retrieval: RetrievalConfig) -> RetrievalConfig:
        if len(set(retrieval.modes)) < len(retrieval.modes):
            raise ValueError(f"modes must name each mode once; write {list(dict.fromkeys(retrieval.modes))}")
        return retrieval
