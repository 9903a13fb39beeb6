"""What the variables of several launchers say against each other: a job of N must never run as N jobs of one."""

from collections.abc import Mapping

from megatron_mep.config.errors import ConfigError, Mistake

STRANGE = (
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "MPI_LOCALNRANKS",
    "PALS_LOCAL_SIZE",
    "JSM_NAMESPACE_SIZE",
    "FLUX_JOB_SIZE",
)
"""In which MPICH, MVAPICH, Intel MPI, PALS, LSF and Flux count the processes that they start."""


def refuse_strange_launchers(environ: Mapping[str, str]) -> None:
    """A `ConfigError` where a launcher that is not understood has started several processes."""
    for name in STRANGE:
        if environ.get(name, "1") not in ("0", "1"):
            rule = "counts processes of a launcher that is not understood: each would be alone in its world"
            remedy = "set RANK, LOCAL_RANK, WORLD_SIZE and MASTER_ADDR for each; for one process alone unset it"
            raise ConfigError(Mistake(name, environ[name], rule, remedy))


def contradictions(environ: Mapping[str, str], rank: int, world_size: int) -> list[Mistake]:
    """What srun says against the rank and world size that the variables of an inner launcher come to."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if "RANK" not in environ or "SLURM_STEP_ID" not in environ or not tasks.isdigit():
        return []
    if world_size < int(tasks):
        rule = f"is less than the {tasks} tasks of this srun, each of which would be in a world of its own"
        remedy = "unset RANK, LOCAL_RANK and WORLD_SIZE, which srun's own variables stand for, or start fewer tasks"
        return [Mistake("WORLD_SIZE", world_size, rule, remedy)]
    place = environ.get("SLURM_PROCID")
    # torchrun counts its nodes in the order of their arrival
    if world_size == int(tasks) and "TORCHELASTIC_RUN_ID" not in environ and place != str(rank):
        rule = f"is not SLURM_PROCID={place}, though every task of this srun is a rank"
        remedy = "unset it, or set it inside of the task, srun bash -c 'RANK=$SLURM_PROCID ...', not around srun"
        return [Mistake("RANK", rank, rule, remedy)]
    return []
