"""A run in miniature, in many layouts, up to and after a checkpoint."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, distributed

from megatron_mep.checkpoint.config import CheckpointConfig
from megatron_mep.checkpoint.files import find, take_over
from megatron_mep.checkpoint.load import load_training_state
from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.checkpoint.progress import Progress
from megatron_mep.checkpoint.save import take_checkpoint
from megatron_mep.checkpoint.saver import Saver
from megatron_mep.checkpoint.state import template_of
from megatron_mep.checkpoint.zero_state import MOMENTS, master_of, moment_of
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.groups import Groups, seed_streams
from megatron_mep.training.engine import build_engine
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.schedule import build_scheduler
from megatron_mep.training.step import micro_batch_starts, train_step
from tests.checkpoint.test_resume import REACHED
from tests.support.distributed import joined
from tests.support.tiny import LEARNED, VOCABULARY, micro_batches_of, model_config, training_config, whole

STEPS, MORE = 2, 3
RUN_YAML = "name: tiny\n"
FRESH, SAVED = 2, 1
"""Seeds: what is loaded into starts from other weights than what was saved."""


@dataclass(frozen=True)
class World:
    """How many processes share the work, and how."""

    size: int
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def joined(self) -> Groups:
        return joined(**self.parallel.model_dump())


WORLDS = {
    "one rank": World(1),
    "two tensor ranks": World(2, ParallelConfig(tensor=2, sequence=True)),
    "two data ranks": World(2),
    "two context ranks": World(2, ParallelConfig(context=2)),
}


@dataclass(frozen=True)
class Run:
    """A run in miniature, whose state is saved after two steps."""

    world: str
    zero_stage: int
    precision: Any = "fp32"
    model: dict[str, Any] = field(default_factory=lambda: {"encoding": LEARNED})

    @property
    def everywhere(self) -> bool:
        """Whether its course is the same at every layout, but for rounding."""
        return self.precision == "fp32" and "hidden_dropout" not in self.model


DROPPING = {"encoding": LEARNED, "hidden_dropout": 0.1}
RUNS = {
    "fp32, ZeRO 0": Run("one rank", 0),
    "fp32, ZeRO 1": Run("two data ranks", 1),
    "fp32, ZeRO 2": Run("two tensor ranks", 2),
    "fp32, ZeRO 3": Run("two data ranks", 3),
    "dropout, divided": Run("two tensor ranks", 1, model=DROPPING),
    "dropout, copied": Run("two data ranks", 1, model=DROPPING),
    "fp32, ZeRO 3, shared": Run("two context ranks", 3),
    "dropout, shared": Run("two context ranks", 1, model=DROPPING),
    "bf16, ZeRO 1": Run("two tensor ranks", 1, "bf16"),
    "bf16, ZeRO 2": Run("two data ranks", 2, "bf16"),
    "bf16, ZeRO 3": Run("two data ranks", 3, "bf16", {"encoding": {"name": "alibi"}}),
}


class Job:
    """The parts of a run on this rank, before its first step."""

    def __init__(self, run: Run, world: World, here: Groups, seed: int) -> None:
        self.here = here
        interleaved = world.parallel.virtual_pipeline > 1
        self.training = training_config(
            steps=STEPS + MORE,
            zero_stage=run.zero_stage,
            precision=run.precision,
            # interleaved stages take as many micro-batches in turn as there are stages
            micro_batch_size=4 // here.data_size // (world.parallel.pipeline if interleaved else 1),
            schedule={"name": "linear"},
        )
        model = build_model(model_config(**run.model), world.parallel, VOCABULARY, seed, dtype_of(run.precision))
        seed_streams(seed + here.stream)
        self.template = template_of(model)
        self.engine = build_engine(model, self.training, here)
        self.scheduler = build_scheduler(self.engine.optimizer, self.training)

    def train(self, first: int, last: int) -> list[float]:
        """The mean losses of some steps."""
        losses = []
        for step in range(first, last + 1):
            self.scheduler.step(1)
            starts = micro_batch_starts(step, self.training, self.here)
            micro_batch = micro_batches_of(self.training.micro_batch_size)
            loss = train_step(self.engine, micro_batch, starts, self.here)
            distributed.all_reduce(loss, group=self.here.data_group)
            losses.append(float(loss) / self.here.data_size)
        return losses

    def state(self) -> dict[str, Tensor]:
        """Masters and moments of whole weights."""
        found = {}
        for name, parameter in self.engine.module.named_parameters():
            mine = [master_of(parameter), *(moment_of(parameter, kind, self.engine) for kind in MOMENTS)]
            parts: list[Any] = [None] * self.here.tensor_size
            distributed.all_gather_object(parts, [part.clone() for part in mine], self.here.tensor_group)
            for kind, shards in zip(("master", *MOMENTS), zip(*parts, strict=True), strict=True):
                found[f"{kind} of {name}"] = whole(shards, parameter)
        return found

    def reached(self, step: int = STEPS) -> Progress:
        here = self.here
        sizes = {axis: getattr(here, axis) for axis in ("tensor_size", "context_size", "pipeline_size", "data_size")}
        return replace(REACHED, step=step, **sizes)

    def save(self, root: Path, keep: int | None = None) -> Path:
        attempt = told_by_rank_0(lambda: take_over(root))
        config = CheckpointConfig(keep=keep)
        draft = take_checkpoint(attempt, self.engine, self.template, self.reached(), RUN_YAML, config, self.here)
        return draft.publish(draft.write(self.here.rank))

    def saver(self, root: Path, **checkpoint: Any) -> Saver:
        attempt = told_by_rank_0(lambda: take_over(root))
        config = CheckpointConfig.model_validate(checkpoint)
        return Saver(attempt, self.engine, self.template, RUN_YAML, config, self.here)

    def load(self, root: Path) -> None:
        progress = load_training_state(find(root), self.engine, self.template, self.here)
        assert progress.step == STEPS
        self.scheduler.step(progress.step)
