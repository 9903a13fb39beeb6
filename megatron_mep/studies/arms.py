"""The arms of a study: runs that differ in encoding, seed, size or training length, and in nothing else."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.loader import load, load_tree, merge
from megatron_mep.config.misspelt import did_you_mean
from megatron_mep.run import RunConfig, run_of
from megatron_mep.studies.config import StudyConfig

OF_THE_STUDY = ("name", "runs", "seed")
"""Keys of a run file that the study sets itself."""
ALIKE = ("data", "evaluation", "extrapolation", "init_from")
"""Sections that no size may change: arms would be trained or measured on other text."""


@dataclass(frozen=True)
class Arm:
    """One run of a study."""

    index: int
    encoding: str
    """Its label in the study."""
    size: str | None
    run: RunConfig

    @property
    def name(self) -> str:
        """That of its run."""
        return self.run.name

    @property
    def train_length(self) -> int:
        """The length that it is trained at."""
        return self.run.training.seq_length

    @property
    def rows_file(self) -> Path:
        """Where its result rows are."""
        return self.run.folder / "evaluation" / "study.jsonl"

    @property
    def run_file(self) -> Path:
        """Where its run file is written for those who train it."""
        return self.run.folder.parent / "arms" / f"{self.name}.yaml"


@dataclass(frozen=True)
class Study:
    """A study with its arms, in the order in which they run: all encodings at one seed, then at the next."""

    config: StudyConfig
    arms: tuple[Arm, ...]

    @property
    def folder(self) -> Path:
        """Where its summary is written, and the folders of its arms are."""
        return Path(self.config.runs) / self.config.study


def load_study(file: Path, overrides: Iterable[str] = ()) -> Study:
    """The study of a file and overrides of it; a `ConfigError` tells what is wrong, and in which arm."""
    config = load(StudyConfig, file, overrides)
    mistakes = list(_mistakes(config))
    if mistakes:
        raise ConfigError(mistakes)
    base = merge(load_tree(file.parent / config.base), config.run)
    arms: list[Arm] = []
    found: dict[Mistake, list[str]] = {}
    lengths: tuple[int | None, ...] = config.lengths or (None,)
    sizes: tuple[str | None, ...] = tuple(config.sizes) or (None,)
    for index, (size, length, seed, label) in enumerate(product(sizes, lengths, config.seeds, config.encodings)):
        name = _name(config, label, size, length, seed)
        try:
            run = run_of(_tree(config, base, label, size, length, seed) | {"name": name})
        except ConfigError as error:
            for mistake in error.mistakes:
                found.setdefault(mistake, []).append(name)
        else:
            arms.append(Arm(index, label, size, run))
    if found:
        raise ConfigError(of_arms(mistake, names) for mistake, names in found.items())
    return Study(config, tuple(arms))


def of_arms(mistake: Mistake, names: list[str]) -> Mistake:
    """A mistake that some arms share, with the first one's name."""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Mistake(f"arm {names[0]}{others}: {mistake.key}", mistake.value, mistake.rule, mistake.remedy)


def _tree(
    config: StudyConfig, base: dict[str, Any], label: str, size: str | None, length: int | None, seed: int
) -> dict[str, Any]:
    tree = merge(base, config.sizes[size]) if size else dict(base)
    if length:
        tree = merge(tree, {"training": {"seq_length": length}})
    # replaced whole: options of the base's encoding mean nothing here
    model = {**tree.get("model", {}), "encoding": config.encodings[label]}
    return {**tree, "model": model, "seed": seed, "runs": str(Path(config.runs) / config.study)}


def _name(config: StudyConfig, label: str, size: str | None, length: int | None, seed: int) -> str:
    of_size = [size] if size else []
    of_length = [f"length{length}"] if len(config.lengths) > 1 else []
    return "-".join([label, *of_size, *of_length, f"seed{seed}"])


def _mistakes(config: StudyConfig) -> Iterator[Mistake]:
    if config.compared_with not in config.encodings:
        meant = did_you_mean(config.compared_with, list(config.encodings))
        yield Mistake("baseline", config.baseline, "is not the label of an encoding of the study", meant)
    changes = {"run": config.run, **{f"sizes.{label}": tree for label, tree in config.sizes.items()}}
    for where, tree in changes.items():
        for key in (key for key in OF_THE_STUDY if key in tree):
            yield Mistake(f"{where}.{key}", tree[key], "is the study's to set", "leave it out; see seeds and runs")
    for label, tree in config.sizes.items():
        for key in (key for key in ALIKE if key in tree):
            yield Mistake(f"sizes.{label}.{key}", None, "must be alike in all arms", f"state it under run.{key}")
