"""A cluster profile: what a job must say on one cluster, and what its nodes are; see launch/clusters/."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    StringConstraints,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from megatron_mep.config.base import Config
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.config.loader import load
from megatron_mep.config.misspelt import did_you_mean
from megatron_mep.launcher.clock import seconds_of
from megatron_mep.plan.accelerators import Device

FOLDER = Path("launch/clusters")
"""Where `--cluster NAME` is looked for, below the current folder."""

Launcher = Literal["srun", "deepspeed", "torchrun"]


def _time(value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("time", "must stand in quotes, for YAML reads a clock as a number; write '24:00:00'")
    seconds_of(value)
    return value


Time = Annotated[str, BeforeValidator(_time)]
"""As SLURM writes it."""
Word = Annotated[str, StringConstraints(pattern=r"^\S+$")]
"""Without spaces, as options of sbatch are."""
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")]
Line = Annotated[str, StringConstraints(pattern=r"^[^\n]+$")]


class Container(Config):
    """The container that ranks run in, by the pyxis plugin of srun."""

    image: Word
    """Given to --container-image: a file, or registry#name:tag."""
    mounts: tuple[Word, ...] = ()
    """Given to --container-mounts, each FROM:TO; the folder of the job and that of the run are mounted anyhow."""
    options: tuple[Word, ...] = ()
    """Further options of srun, for example --no-container-mount-home."""


class Cluster(Config):
    """One cluster, or one part of it that jobs are sent to."""

    partition: Word | None = None
    """The partition; the cluster's default where absent."""
    account: Word | None = None
    """Who is charged."""
    qos: Word | None = None
    """Quality of service."""
    sbatch_options: tuple[Line, ...] = ()
    """Further lines of #SBATCH, for example --exclusive or --constraint=a100."""
    gpus_per_node: NonNegativeInt
    """GPUs that a job has on each node; 0 where ranks run on CPUs."""
    ranks_per_node: PositiveInt | None = Field(None, validate_default=True)
    """Ranks on a node; one a GPU where absent."""
    cpus_per_task: PositiveInt | None = None
    """Cores of each rank."""
    memory: Word | None = None
    """Memory of a node, given to --mem; 0 means all of it."""
    device: Device | None = None
    """What ranks run on, as `mep plan --device` knows it: memory and time of a run are then held against it."""
    time_limit: Time
    """The longest that a job may last, and how long it lasts where --time says nothing."""
    max_nodes: PositiveInt | None = None
    """The most nodes that a job may have."""
    launcher: Launcher = "srun"
    """Who starts the ranks on the nodes of a job; --launcher comes first."""
    modules: tuple[Word, ...] = ()
    """Loaded by `module load`."""
    setup: tuple[Line, ...] = ()
    """Further lines of shell ahead of the ranks, for example the activation of an environment."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Variables of the ranks."""
    network_interface: Word | None = None
    """What NCCL and gloo meet through; they choose where absent."""
    container: Container | None = None
    """The ranks' container; none where absent."""
    python: Word | None = None
    """The ranks' Python: where absent the one that `mep launch` runs on, in a container `python`."""
    node_check: Line | None = None
    """A shell command that succeeds on a healthy node; a job starts without the nodes on which it does not."""
    signal_ahead: Time = "5"
    """How long before the end of its time a job is told to save: a step and the writing of a checkpoint must fit."""
    go_on_by: Literal["requeue", "resubmit"] = "requeue"
    """How a job that has saved goes on: as the same job, or as a new one where the cluster allows no requeue."""
    max_starts: PositiveInt = 3
    """Starts in a row without a newer checkpoint after which a job gives up."""

    @field_validator("ranks_per_node")
    @classmethod
    def _ranks_are_known(cls, ranks: int | None, info: ValidationInfo) -> int | None:
        if ranks is None and info.data.get("gpus_per_node") == 0:
            raise PydanticCustomError("ranks", "is needed where gpus_per_node is 0; state how many ranks a node has")
        return ranks

    @property
    def num_ranks(self) -> int:
        """Ranks on a node."""
        return self.ranks_per_node or self.gpus_per_node


def load_cluster(name: str) -> Cluster:
    """The profile of a file, or of a name in launch/clusters; a `ConfigError` tells every mistake in it."""
    return load(Cluster, _file_of(name))


def _file_of(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    known = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}
    if name not in known:
        remedy = did_you_mean(name, list(known)) if known else "give the path of a profile, ending in .yaml"
        raise ConfigError(Mistake("--cluster", name, f"is not a profile in {FOLDER}", remedy))
    return known[name]
