"""A study file: which encodings are compared, over which seeds, sizes and training lengths of one base run."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from megatron_mep.config.base import Config
from megatron_mep.config.lengths import Length

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Seed = Annotated[int, Field(ge=0)]


class StudyConfig(Config):
    """Every combination of encoding, seed, size and length is an arm: a run that is trained and evaluated."""

    study: Label
    """Names the study in its folder and its summary."""
    base: str
    """The run file that all arms start from, relative to the study's."""
    runs: str = "runs/studies"
    """The folder that holds the study's folder, in which those of its arms are."""
    run: dict[str, Any] = Field(default_factory=dict)
    """What all arms change in the base run, by the keys of a run file."""
    encodings: dict[Label, dict[str, Any]] = Field(min_length=1)
    """The encodings by a label each, as under `model.encoding` of a run file."""
    baseline: str | None = None
    """The label of the encoding that the others are compared with; the first one's by default."""
    seeds: tuple[Seed, ...] = Field(min_length=1)
    """Each fixes initial weights and the order of data, alike for all encodings."""
    sizes: dict[Label, dict[str, Any]] = Field(default_factory=dict)
    """What a size changes in the base run, by a label each; one size, the base's, where none is stated."""
    lengths: tuple[Length, ...] = ()
    """Training lengths; the base's where none is stated."""
    ranks: int = Field(default=1, gt=0)
    """Ranks of an arm on this machine."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the intervals of the summary."""

    @field_validator("seeds", "lengths")
    @classmethod
    def _unique(cls, numbers: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"must name each number once; write {list(dict.fromkeys(numbers))}")
        return numbers

    @property
    def compared_with(self) -> str:
        """The label of the baseline."""
        return self.baseline or next(iter(self.encodings))
