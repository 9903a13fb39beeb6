"""A run file: every section of it, and what must hold between them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from megatron_mep.analysis.config import AnalysisConfig
from megatron_mep.checkpoint.config import CheckpointConfig
from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError
from megatron_mep.config.explain import explain
from megatron_mep.config.loader import apply_overrides, load_tree
from megatron_mep.config.salvage import salvage
from megatron_mep.data.config import DataConfig
from megatron_mep.evaluation.config import EvaluationConfig, ValidationConfig
from megatron_mep.extrapolation import AnyTrick
from megatron_mep.generation.config import GenerationConfig
from megatron_mep.model.config import ModelConfig
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.job_config import JobConfig
from megatron_mep.probes.config import ProbesConfig
from megatron_mep.rules import broken_rules
from megatron_mep.training.config import LoggingConfig, TrainingConfig


class RunConfig(Config):
    """One pretraining run and its evaluation."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the run in its folder, its results and its plots."""
    runs: str = "runs"
    """The folder that holds the folders of runs."""
    init_from: str | None = None
    """A checkpoint, or the folder of its run, whose weights the run starts from; all else starts anew."""
    seed: int = Field(1234, ge=0)
    """Fixes initial weights, the order of data and dropout."""
    model: ModelConfig
    """The network and its positional encoding."""
    data: DataConfig = DataConfig()
    """The text, its tokenizer and the prepared corpus."""
    parallel: ParallelConfig = ParallelConfig()
    """How ranks share the work."""
    job: JobConfig = JobConfig()
    """When a job of the run stops, and how long its ranks wait for each other."""
    training: TrainingConfig
    """Length, batch, steps, precision, optimizer and schedule."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are written and which stay."""
    validation: ValidationConfig = ValidationConfig()
    """Perplexity on held-out text while training."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Perplexity of a checkpoint at many lengths."""
    extrapolation: tuple[AnyTrick, ...] = ()
    """Length tricks, put in turn on the trained encoding where a checkpoint is evaluated or writes text."""
    generation: GenerationConfig = GenerationConfig()
    """Text that a checkpoint writes."""
    probes: ProbesConfig = ProbesConfig()
    """Questions with known answers that a checkpoint is asked, by length."""
    analysis: AnalysisConfig = AnalysisConfig()
    """What a checkpoint uses of the tokens before, by length."""
    logging: LoggingConfig = LoggingConfig()
    """Progress, TensorBoard and metrics."""

    @property
    def folder(self) -> Path:
        """Where everything of this run is written."""
        return Path(self.runs) / self.name

    def yaml(self) -> str:
        """The resolved run file: every key with the value in force."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100)


def load_run(file: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """The run of a file and overrides; a `ConfigError` tells all its mistakes, those between sections included."""
    return run_of(load_tree(file, overrides))


def overridden(run: RunConfig, overrides: Iterable[str]) -> RunConfig:
    """The run with overrides `a.b=c`, validated anew."""
    return run_of(apply_overrides(run.model_dump(mode="json"), overrides))


def run_of(tree: dict[str, Any]) -> RunConfig:
    """The run that a tree of values states."""
    try:
        run = RunConfig.model_validate(tree)
    except ValidationError as error:
        mistakes = explain(error, RunConfig, tree)
        readable = salvage(RunConfig, tree)
        if readable is not None:
            mistakes += broken_rules(readable, tuple(mistake.key for mistake in mistakes))
        raise ConfigError(mistakes) from None
    encoding = run.model.encoding.resolved(run.training.seq_length)
    run = run.model_copy(update={"model": run.model.model_copy(update={"encoding": encoding})})
    mistakes = broken_rules(run)
    if mistakes:
        raise ConfigError(mistakes)
    return run
