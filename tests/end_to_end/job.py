"""A whole job in miniature: a run on a corpus of stories, started on several ranks without a launcher."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from megatron_mep.config.errors import CheckpointError
from megatron_mep.evaluate import evaluate
from megatron_mep.evaluation.rows import ResultRow, read_rows
from megatron_mep.pretrain import pretrain
from megatron_mep.run import RunConfig, overridden, run_of
from tests.data.toy import settings
from tests.support.distributed import run as run_ranks
from tests.support.distributed import run_and_kill
from tests.support.runs import run_tree


def job(folder: Path, **changes: Any) -> RunConfig:
    """A run of 8 steps with dropout, a checkpoint every 3 and validation at the end, on a corpus below `folder`."""
    smallest = run_tree(
        runs=str(folder / "runs"),
        model={"num_layers": 2, "hidden_dropout": 0.1},
        data=settings(folder).model_dump(mode="json"),
        training={"seq_length": 16, "steps": 8, "global_batch_size": 4, "schedule": {"name": "linear"}},
        checkpoint={"interval": 3},
        validation={"interval": 8, "tokens": 512},
        logging={"interval": 1},
        evaluation={"lengths": [16, 64], "tokens": 512, "spans": 4, "last_k": 8, "batch_tokens": 128},
    )
    return overridden(run_of(smallest), [f"{key}={value}" for key, value in changes.items()])


def train_on(world_size: int, run: RunConfig, killed_at: tuple[str, int] | None = None) -> None:
    """Trains on ranks of this machine; `killed_at` names the rank's point of death, see `_die_at`."""
    run_ranks(_train, world_size, run, killed_at)


def train_until_killed(world_size: int, run: RunConfig, rank: int, after_s: float) -> bool:
    """Trains on ranks of this machine, one of which is killed after a time; whether the run was still going on."""
    return run_and_kill(_train, world_size, rank, after_s, run, None)


def keys_refused(run: RunConfig, file: Path) -> list[str]:
    """The keys of the mistakes for which training is refused, by way of a file that is not there yet.

    In a process of its own: threads that training has started do not survive the forks of later tests.
    """
    run_ranks(_refused, 1, run, file)
    keys: list[str] = json.loads(file.read_text(encoding="utf-8"))
    return keys


def evaluate_on(world_size: int, checkpoint: Path, to: Path, overrides: tuple[str, ...] = ()) -> list[ResultRow]:
    """Evaluates on ranks of this machine."""
    run_ranks(_evaluate, world_size, checkpoint, to, overrides)
    return read_rows(to)


def _train(run: RunConfig, killed_at: tuple[str, int] | None) -> None:
    describe_rank()
    if killed_at is not None and distributed.get_rank() == distributed.get_world_size() - 1:
        _die_at(*killed_at)
    pretrain(run)


def _refused(run: RunConfig, file: Path) -> None:
    describe_rank()
    with pytest.raises(CheckpointError) as caught:
        pretrain(run)
    file.write_text(json.dumps([mistake.key for mistake in caught.value.mistakes]), encoding="utf-8")


def _evaluate(checkpoint: Path, to: Path, overrides: tuple[str, ...]) -> None:
    describe_rank()
    evaluate(checkpoint, overrides, to)


def describe_rank() -> None:
    """What a launcher would have set; the group itself is there already."""
    os.environ.update(
        RANK=str(distributed.get_rank()),
        LOCAL_RANK=str(distributed.get_rank()),
        WORLD_SIZE=str(distributed.get_world_size()),
        MASTER_ADDR="127.0.0.1",
    )


def _die_at(point: str, call: int) -> None:
    """Kills this process, as the kernel would, in the given call of a function that the run goes through."""
    module_name, _, name = point.rpartition(".")
    module = __import__(module_name, fromlist=[name])
    original = getattr(module, name)
    calls = iter(range(1, call + 1))

    def deadly(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(module, name, deadly)
