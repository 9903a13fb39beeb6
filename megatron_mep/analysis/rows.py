"""Rows of analyses: what a checkpoint uses of windows of one length, one line of JSON in a file."""

import math
from typing import Literal, Self

from pydantic import model_validator

from megatron_mep.config.base import Config
from megatron_mep.evaluation.rows import OutcomeRow

ROUNDING = 1e-4
"""How far attention weights in fp32 may add up to another number than 1."""


class Analysis(Config):
    """What was looked at, and the outcome. Layers and heads come in their order."""

    kind: Literal["analysis"] = "analysis"
    length: int
    """Tokens of a window."""
    num_windows: int
    scored_tokens: int
    """Predictions whose gradients were taken: of the token after each window."""
    scored_hash: str
    """SHA-256 of their positions and token ids; equal for every length of an analysis."""
    distance_ends: tuple[int, ...]
    """Last distance of each range of distances between a query and a key, from 0."""
    attention_mass: tuple[tuple[tuple[float, ...], ...], ...] | None
    """Share of a query's attention in each range, by layer and head: the mean over all queries of all windows. Null
    where a score is not finite."""
    attention_distance: tuple[tuple[float, ...], ...] | None
    """Mean distance that each head attends to; null beside a null `attention_mass`."""
    gradient_share: tuple[float, ...] | None
    """Share of the gradient from distance 0 to the end of each range: the mean over windows. Null where a gradient is
    not finite, or all are zero."""
    receptive_field_share: float
    receptive_field: int | None
    """Smallest distance at which the mean over windows reaches that share."""
    receptive_field_windows: tuple[int, ...] | None
    """The same of each window."""
    seconds: float

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for head in (head for layer in self.attention_mass or () for head in layer):
            if len(head) != len(self.distance_ends) or not math.isclose(sum(head), 1, abs_tol=ROUNDING):
                raise ValueError(f"attention_mass of a head must add up to 1 over the ranges, not to {sum(head)}")
        return self


class AnalysisRow(OutcomeRow, Analysis):
    """One line of a file of analyses."""
