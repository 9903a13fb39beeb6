"""Who this process is among the processes of a job, whichever launcher started it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.parallel.contradictions import contradictions, refuse_strange_launchers
from megatron_mep.parallel.hostlist import hosts

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 29500


@dataclass(frozen=True)
class Environment:
    """This process's place in the job, and where the processes meet. Alone in the world by default."""

    rank: int = 0
    """Place among all processes of the job."""
    local_rank: int = 0
    """Place among those of this node."""
    world_size: int = 1
    """Processes of the job."""
    local_world_size: int | None = 1
    """Processes of this node; `None` where the launcher does not tell."""
    master_addr: str = LOOPBACK
    """Host of rank 0."""
    master_port: int = DEFAULT_PORT
    """Port of rank 0 at which the others meet it."""
    hosts_of_ranks: tuple[str, ...] = field(default=(), compare=False)
    """Where each rank should be; empty where the launcher does not tell."""

    @classmethod
    def discover(cls, environ: Mapping[str, str]) -> "Environment":
        """The environment that torchrun, deepspeed, Open MPI or srun describe in `environ`."""
        launcher = _launcher(environ)
        if launcher is None:
            refuse_strange_launchers(environ)
            return cls()
        reader = _Reader(environ, launcher)
        environment = reader.environment()
        mistakes = reader.mistakes or contradictions(environ, environment.rank, environment.world_size)
        mistakes = mistakes or list(_unreachable(environment))
        if mistakes:
            raise ConfigError(mistakes)
        return environment

    @property
    def variables(self) -> dict[str, str]:
        """The same in torchrun's variables, the ones that libraries read."""
        variables = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": self.world_size,
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": self.master_port,
        }
        if self.local_world_size is not None:
            variables["LOCAL_WORLD_SIZE"] = self.local_world_size
        return {name: str(value) for name, value in variables.items()}


@dataclass(frozen=True)
class _Launcher:
    """The variables in which a launcher says the same things; of several names the first that is set counts."""

    start: str
    """How to start a process so that all of them are set."""
    rank: str
    local_rank: str
    world_size: tuple[str, ...]
    local_world_size: tuple[str, ...] = ()
    tasks_of_nodes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ("SLURM_JOB_NODELIST",)


_TORCHRUN = _Launcher(
    start="start with torchrun or deepspeed, which set all of RANK, LOCAL_RANK, WORLD_SIZE and MASTER_ADDR",
    rank="RANK",
    local_rank="LOCAL_RANK",
    world_size=("WORLD_SIZE",),
    local_world_size=("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
)
_OPEN_MPI = _Launcher(
    start="start with mpirun; over several nodes with -x MASTER_ADDR=<host of rank 0>",
    rank="OMPI_COMM_WORLD_RANK",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    world_size=("OMPI_COMM_WORLD_SIZE",),
    local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
)
_SRUN = _Launcher(
    start="start with srun, one task for each process",
    rank="SLURM_PROCID",
    local_rank="SLURM_LOCALID",
    # a step may run fewer tasks than the job, on some of its nodes
    world_size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    tasks_of_nodes=("SLURM_STEP_TASKS_PER_NODE",),
    nodes=("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
)


def _launcher(environ: Mapping[str, str]) -> _Launcher | None:
    """Who started this process; the outer launcher's variables are still set inside an inner one's processes."""
    for launcher in (_TORCHRUN, _OPEN_MPI):
        if any(name in environ for name in (launcher.rank, *launcher.world_size)):
            return launcher
    if "SLURM_STEP_ID" in environ:
        return _SRUN
    # the batch script itself is told rank 0 and the number of tasks, yet is none of the tasks
    for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_NUM_NODES"):
        if environ.get(name, "1") != "1":
            rule = "says that there are more of this process, and there are not: srun did not start it"
            remedy = f"{_SRUN.start}; for one process alone set RANK=0 LOCAL_RANK=0 WORLD_SIZE=1"
            raise ConfigError(Mistake(name, environ[name], rule, remedy))
    return None


def _unreachable(environment: Environment) -> Iterator[Mistake]:
    """Every node would look for rank 0 at home."""
    local = environment.local_world_size
    if local and local < environment.world_size and environment.master_addr in ("localhost", LOOPBACK, "::1"):
        yield Mistake("MASTER_ADDR", environment.master_addr,
                      f"is each node's own, and only {local} of {environment.world_size} processes are on this one",
                      "set it to the host of rank 0")  # fmt: skip


class _Reader:
    """Reads a launcher's variables and keeps every mistake found in them."""

    def __init__(self, environ: Mapping[str, str], launcher: _Launcher) -> None:
        self.mistakes: list[Mistake] = []
        self._environ = environ
        self._launcher = launcher

    def environment(self) -> Environment:
        """What the variables say; meaningless where there are mistakes."""
        launcher = self._launcher
        world_size = self._number(*launcher.world_size)
        rank = self._number(launcher.rank)
        local_rank = self._number(launcher.local_rank)
        local_world_size = self._local_world_size()
        if not self.mistakes:
            self._check_below(launcher.rank, rank, world_size)
            self._check_below(launcher.local_rank, local_rank, local_world_size or world_size)
        return Environment(
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=local_world_size,
            master_addr=self._master_addr(one_node=world_size in (1, local_world_size)),
            master_port=self._master_port(),
            hosts_of_ranks=self._hosts_of_ranks(),
        )

    def _local_world_size(self) -> int | None:
        if self._first(self._launcher.local_world_size):
            return self._number(*self._launcher.local_world_size)
        tasks = self._first(self._launcher.tasks_of_nodes)
        return _tasks_of_nodes(self._environ[tasks])[self._number("SLURM_NODEID")] if tasks else None

    def _master_addr(self, one_node: bool) -> str:
        if "MASTER_ADDR" in self._environ:
            return self._environ["MASTER_ADDR"]
        nodes = self._first(self._launcher.nodes)
        if nodes:
            return hosts(self._environ[nodes])[0]
        if not one_node:
            self._add("MASTER_ADDR", None, "is needed by processes of several nodes")
        return LOOPBACK

    def _hosts_of_ranks(self) -> tuple[str, ...]:
        """In blocks, as srun places tasks where it is not told otherwise."""
        tasks, nodes = self._first(self._launcher.tasks_of_nodes), self._first(self._launcher.nodes)
        if tasks is None or nodes is None:
            return ()
        counted = zip(hosts(self._environ[nodes]), _tasks_of_nodes(self._environ[tasks]), strict=False)
        return tuple(host for host, number in counted for _ in range(number))

    def _master_port(self) -> int:
        if "MASTER_PORT" in self._environ:
            return self._number("MASTER_PORT")
        if "SLURM_JOB_ID" in self._environ:
            # below 32768: from there on the kernel hands ports out to anyone
            return 10000 + self._number("SLURM_JOB_ID") % 20000
        return DEFAULT_PORT

    def _number(self, *names: str) -> int:
        """The first of the variables that is set; 0 where that is a mistake."""
        name = self._first(names)
        if name is None:
            self._add(names[-1], None, "is not set, though others of the launcher's variables are")
            return 0
        if not re.fullmatch(r"\d+", self._environ[name]):
            self._add(name, self._environ[name], "must be a whole number")
            return 0
        return int(self._environ[name])

    def _check_below(self, name: str, rank: int, size: int) -> None:
        if rank >= size:
            self._add(name, rank, f"must be below the number of processes, {size}")

    def _first(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self._environ), None)

    def _add(self, key: str, value: object, rule: str) -> None:
        self.mistakes.append(Mistake(key, value, rule, self._launcher.start))


def _tasks_of_nodes(tasks: str) -> list[int]:
    """SLURM's `2(x3),1` as `2, 2, 2, 1`."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)
    return [int(number) for number, times in found for _ in range(int(times or 1))]
