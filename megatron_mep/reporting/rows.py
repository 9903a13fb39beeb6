"""The lines that a report is made of, as far as it reads them: results, probes, analyses and training records.

A report takes from a line what it shows and leaves the rest alone, so that a newer writer may add to it.
"""

import math
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict

SCHEMA_VERSION = 1


class ModelRow(BaseModel):
    """What every row says of the model that was measured."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    schema_version: Literal[1]
    run: str
    purpose: Literal["evaluation", "validation"]
    encoding: str
    encoding_options: dict[str, Any]
    extrapolation: tuple[dict[str, Any], ...] = ()
    """The length tricks that were put on the encoding, in turn, each by its name and all its options."""
    checkpoint: str | None
    step: int
    consumed_tokens: int
    num_parameters: int
    train_length: int
    seed: int
    tokenizer_hash: str
    corpus_fingerprint: str
    precision: str
    attention_backend: str
    attention_epsilon: float = 0.0
    tensor_parallel: int
    data_parallel: int
    version: str
    length: int
    created: AwareDatetime


class Row(ModelRow):
    """A result row."""

    protocol: str
    context: Literal["full", "cut"]
    window: int
    stride: int | None
    last_k: int | None
    scored_tokens: int
    scored_hash: str
    nll: float | None
    """Nats per token; `None` where `non_finite` tokens have none."""
    perplexity: float | None
    perplexity_low: float | None = None
    """Ends of the 95 % interval over documents, where there are enough of them."""
    perplexity_high: float | None = None
    bits_per_byte: float | None
    non_finite: int
    position_ends: tuple[int, ...] | None = None
    """Last position, from 1, of each range of positions in a window."""
    position_nll: tuple[float | None, ...] | None = None
    """Mean nats per token in each range."""

    @property
    def value(self) -> float:
        """Perplexity: infinite beyond the largest double, NaN where the NLL of some token is not finite."""
        if self.perplexity is not None:
            return self.perplexity
        return math.nan if self.non_finite else math.inf


class ProbeRow(ModelRow):
    """How well a model answers one task at one length and depth; scores are in percent."""

    kind: Literal["retrieval", "formal"]
    task: str
    task_options: dict[str, Any]
    depth: float | None
    """Where in the text the answer stands, as a share of it; `None` where in no single place."""
    num_samples: int
    samples_hash: str
    """Equal where two models were asked the same."""
    found: float | None
    """Share of wanted words in greedily generated text; `None` where that was not measured."""
    exact: float | None
    """Share of samples whose answer is predicted token by token; `None` where that was not measured."""
    token_accuracy: float | None
    mean_rank: float | None
    non_finite: int


class AnalysisRow(ModelRow):
    """What a model uses of its context at one length: gradients and attention by distance."""

    kind: Literal["analysis"]
    scored_tokens: int
    scored_hash: str
    distance_ends: tuple[int, ...]
    """Last distance of each bin, the first being 0."""
    attention_mass: tuple[tuple[tuple[float, ...], ...], ...] | None
    """Share of attention by layer, head and bin; `None` where some score is not finite."""
    gradient_share: tuple[float, ...] | None
    """Share of the gradient's norm up to the end of each bin."""
    receptive_field_share: float
    receptive_field: int | None
    """Distance within which that share lies."""


AnyRow = Row | ProbeRow | AnalysisRow


class TrainingPoint(BaseModel):
    """One record of a run's training metrics."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: int
    consumed_tokens: int
    loss: float | None = None
    validation_loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
