"""Rows of probes: how well a checkpoint answers one task at one length and depth, one line of JSON in a file."""

from typing import Any, Literal

from pydantic import Field

from megatron_mep.config.base import Config
from megatron_mep.evaluation.rows import OutcomeRow


class Answers(Config):
    """What was asked, how, and the outcome; scores are in percent."""

    kind: Literal["retrieval", "formal"]
    task: str
    task_options: dict[str, Any]
    length: int
    """Of `retrieval`: tokens of prompt and generation, at most. Of `formal`: what the task counts."""
    depth: float | None
    """Where in the text the answer stands, as a share of it; null where it stands in no single place."""
    num_samples: int
    samples_hash: str
    """SHA-256 of all prompts and answers: equal where two models were asked the same."""
    prompt_tokens: int
    """Of the longest prompt."""
    max_new_tokens: int | None
    """What generation got; null where nothing is generated."""
    probe_seed: int
    """Decides what is asked."""
    oracle: float
    """The lowest score of a model that finds every answer; 100 unless the probe itself is wrong."""
    found: float | None
    """Share of wanted words that stand in greedily generated text; null where that was not measured."""
    exact: float | None
    """Share of samples whose answer is predicted token by token. Of several words it is the answer in one order."""
    token_accuracy: float | None
    mean_rank: float | None
    """Of the right token, the likeliest being 1."""
    mean_reciprocal_rank: float | None
    nll: float | None
    """Mean negative log-likelihood of the answer, nats a token."""
    non_finite: int = Field(ge=0)
    """Samples with logits that are not finite; all scores are null where there are any."""
    seconds: float


class ProbeRow(OutcomeRow, Answers):
    """One line of a file of probes."""
