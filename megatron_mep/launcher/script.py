"""A job -> its batch script: pure functions of what the job and the cluster say."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from megatron_mep.launcher.clock import seconds_of
from megatron_mep.launcher.profile import Cluster, Container, Launcher

CHECK_TIMEOUT_S = 300
"""How long a node may take to answer that it is healthy."""


@dataclass(frozen=True)
class Job:
    """A run that is to be trained on a cluster; all paths are absolute."""

    name: str
    """Of the run."""
    run_file: str
    """The resolved run file that the ranks read."""
    run_folder: str
    """Where the run writes."""
    work_folder: str
    """The current folder of the ranks, which relative paths of the run file start from."""
    nodes: int
    time: str
    """How long it may last, as SLURM writes it."""
    launcher: Launcher
    python: str
    """Of the ranks."""


def batch_script(job: Job, cluster: Cluster) -> str:
    """What sbatch is given: directives, what differs from job to job, and what does not (job.sh)."""
    lines = [
        "#!/bin/bash",
        f"# {job.name} on {job.nodes} x {cluster.num_ranks} ranks, written by `mep launch`",
        *(f"#SBATCH {directive}" for directive in _directives(job, cluster)),
        "",
        "# the run",
        *_run(job),
        "",
        "# the cluster",
        *_cluster(job, cluster),
        "",
    ]
    return "\n".join(lines) + "\n" + supervision()


def supervision() -> str:
    """The part that all jobs share."""
    return (files(__package__) / "job.sh").read_text(encoding="utf-8")


def _directives(job: Job, cluster: Cluster) -> Iterator[str]:
    yield f"--job-name={job.name}"
    for option in ("partition", "account", "qos"):
        if getattr(cluster, option):
            yield f"--{option}={getattr(cluster, option)}"
    yield f"--nodes={job.nodes}"
    yield f"--ntasks-per-node={cluster.num_ranks}"
    if cluster.gpus_per_node:
        yield f"--gpus-per-node={cluster.gpus_per_node}"
    if cluster.cpus_per_task:
        yield f"--cpus-per-task={cluster.cpus_per_task}"
    if cluster.memory:
        yield f"--mem={cluster.memory}"
    yield f"--time={job.time}"
    # to the script alone, which asks the ranks
    yield f"--signal=B:USR1@{seconds_of(cluster.signal_ahead)}"
    yield "--requeue" if cluster.go_on_by == "requeue" else "--no-requeue"
    # or a requeue would empty the log
    yield "--open-mode=append"
    yield f"--output={job.run_folder}/logs/%j.log"
    yield f"--chdir={job.work_folder}"
    yield from cluster.sbatch_options


def _run(job: Job) -> Iterator[str]:
    yield _assigned("RUN_FOLDER", job.run_folder)
    yield f"COMMAND=({shlex.join(['-m', 'megatron_mep', 'train', job.run_file])})"
    yield "FINISHED=$RUN_FOLDER/finished.json PROGRESS=$RUN_FOLDER/checkpoints/latest"


def _cluster(job: Job, cluster: Cluster) -> Iterator[str]:
    yield f"LAUNCHER={job.launcher} RANKS_PER_NODE={cluster.num_ranks} PYTHON={shlex.quote(job.python)}"
    yield f"SRUN_OPTIONS=({shlex.join(_container_options(job, cluster.container))})"
    yield f"NODE_CHECK={shlex.quote(cluster.node_check or '')} CHECK_TIMEOUT_S={CHECK_TIMEOUT_S}"
    yield (
        f"GO_ON_BY={cluster.go_on_by} MAX_STARTS={cluster.max_starts} SIGNAL_AHEAD_S={seconds_of(cluster.signal_ahead)}"
    )
    if cluster.modules:
        yield f"module load {shlex.join(cluster.modules)}"
    yield from cluster.setup
    for name, value in _environment(cluster).items():
        yield f"export {_assigned(name, value)}"


def _environment(cluster: Cluster) -> dict[str, str]:
    """The variables of the ranks; what the profile states comes first."""
    interface = cluster.network_interface
    found = {f"{library}_SOCKET_IFNAME": interface for library in ("NCCL", "GLOO")} if interface else {}
    if not cluster.gpus_per_node:
        # DeepSpeed looks for a GPU else, and a node may have some
        found |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return found | cluster.environment


def _container_options(job: Job, container: Container | None) -> list[str]:
    if container is None:
        return []
    mounts = [*container.mounts, f"{job.work_folder}:{job.work_folder}", f"{job.run_folder}:{job.run_folder}"]
    return [
        f"--container-image={container.image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={job.work_folder}",
        *container.options,
    ]


def _assigned(name: str, value: str) -> str:
    return f"{name}={shlex.quote(value)}"
