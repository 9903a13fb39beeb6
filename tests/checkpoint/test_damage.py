"""Twenty damaged checkpoints: twenty refusals, each with the file named, and the whole one offered."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from megatron_mep.checkpoint.files import find, step_folder, verify
from megatron_mep.checkpoint.load import load_weights
from megatron_mep.config.errors import CheckpointError
from megatron_mep.model.gpt import build_model
from tests.checkpoint.job import FRESH, RUNS, STEPS, WORLDS, Job
from tests.support.distributed import run
from tests.support.tiny import LEARNED, VOCABULARY, model_config

SEED = 5
NUM_OF_A_KIND = 4


def test_twenty_damaged_checkpoints_are_refused_with_the_file(tmp_path: Path):
    run(_save, 2, tmp_path)
    whole, foreign = (step_folder(tmp_path / name, STEPS) for name in ("whole", "foreign"))
    draw = Random(SEED)
    damaged: list[tuple[Path, Path]] = []
    for kind in (truncate, flip, remove, exchange, add):
        for number in range(NUM_OF_A_KIND):
            root = tmp_path / f"{kind.__name__}-{number}"
            shutil.copytree(whole, step_folder(root, 1))
            shutil.copytree(whole, step_folder(root, STEPS))
            (root / "latest").write_text(f"{step_folder(root, STEPS).name}\n")
            damaged.append((root, kind(step_folder(root, STEPS), foreign, draw)))
    assert len(damaged) == 20
    assert len({file.name for _, file in damaged}) > 5, "otherwise chance has shown little"
    verify(whole)
    for root, file in damaged:
        with pytest.raises(CheckpointError, match="write step_00000001, the newest whole one, into") as caught:
            verify(step_folder(root, STEPS))
        assert [mistake.key for mistake in caught.value.mistakes] == [str(file)]
    run(_all_are_refused, 1, damaged)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def truncate(folder: Path, foreign: Path, draw: Random) -> Path:
    file = draw.choice(files_in(folder))
    content = file.read_bytes()
    file.write_bytes(content[: draw.randrange(len(content))])
    return file


def flip(folder: Path, foreign: Path, draw: Random) -> Path:
    file = draw.choice(files_in(folder))
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    return file


def remove(folder: Path, foreign: Path, draw: Random) -> Path:
    file = draw.choice(files_in(folder))
    file.unlink()
    return file


def exchange(folder: Path, foreign: Path, draw: Random) -> Path:
    """A file of another checkpoint under the name of one of these."""
    file = draw.choice(list(_differing(folder, foreign)))
    shutil.copy(foreign / file.name, file)
    return file


def add(folder: Path, foreign: Path, draw: Random) -> Path:
    """A file of another checkpoint beside these."""
    file = folder / f"__{draw.randrange(2, 100)}_0.distcp"
    shutil.copy(foreign / "__0_0.distcp", file)
    return file


def _differing(folder: Path, foreign: Path) -> Iterator[Path]:
    # the list of another checkpoint is whole, and all files but it are told
    names = (file for file in files_in(folder) if file.name != "checksums.json")
    return (file for file in names if file.read_bytes() != (foreign / file.name).read_bytes())


def _save(root: Path) -> None:
    here = WORLDS["two data ranks"].joined()
    for name, seed in (("whole", FRESH), ("foreign", FRESH + 1)):
        Job(RUNS["fp32, ZeRO 1"], WORLDS["two data ranks"], here, seed).save(root / name)


def _all_are_refused(damaged: list[tuple[Path, Path]]) -> None:
    world = WORLDS["one rank"]
    world.joined()
    model = build_model(model_config(encoding=LEARNED), world.parallel, VOCABULARY, FRESH)
    for root, file in damaged:
        with pytest.raises(CheckpointError) as caught:
            load_weights(find(root), model)
        assert [mistake.key for mistake in caught.value.mistakes] == [str(file)]
