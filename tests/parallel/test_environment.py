import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.parallel.environment import Environment

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "4711",
}
ELASTIC = TORCHRUN | {"RANK": "2", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "7"}
DEEPSPEED = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"} | {"LOCAL_SIZE": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
BATCH = {
    "SLURM_JOB_ID": "30007",
    "SLURM_JOB_NODELIST": "node[09-10],gpu5",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
SRUN = BATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
STEP = {"SLURM_STEP_NUM_TASKS": "4"}
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
FOURTH_OF_FOUR = {"rank": 3, "local_rank": 1, "world_size": 4, "local_world_size": 2}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Environment()),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, Environment()),
        (without(BATCH, "SLURM_NTASKS") | {"SLURM_NTASKS": "1"}, Environment()),
        (ALONE, Environment(local_world_size=None)),
        (BATCH | ALONE, Environment(local_world_size=None, master_addr="node09", master_port=20007)),
        (TORCHRUN, Environment(**FOURTH_OF_FOUR, master_addr="node1", master_port=4711)),
        (DEEPSPEED, Environment(**FOURTH_OF_FOUR, master_addr="node1", master_port=4711)),
        (without(TORCHRUN, "MASTER_PORT"), Environment(**FOURTH_OF_FOUR, master_addr="node1", master_port=29500)),
        (SRUN, Environment(**FOURTH_OF_FOUR, master_addr="node09", master_port=20007)),
        (SRUN | STEP | TORCHRUN, Environment(**FOURTH_OF_FOUR, master_addr="node1", master_port=4711)),
        (
            SRUN | STEP | ELASTIC,
            Environment(**FOURTH_OF_FOUR | {"rank": 2, "local_rank": 0}, master_addr="node1", master_port=4711),
        ),
        (SRUN | TORCHRUN, Environment(**FOURTH_OF_FOUR, master_addr="node1", master_port=4711)),
        (SRUN | OPEN_MPI, Environment(**FOURTH_OF_FOUR, master_addr="node09", master_port=20007)),
        (
            OPEN_MPI | {"MASTER_ADDR": "host1"},
            Environment(**FOURTH_OF_FOUR, master_addr="host1", master_port=29500),
        ),
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
            Environment(rank=3, local_rank=1, world_size=4, local_world_size=4),
        ),
    ],
    ids=[
        "a shell",
        "a batch script without tasks",
        "a batch script of one task",
        "one process by hand",
        "one process by hand in a batch script",
        "torchrun",
        "deepspeed",
        "torchrun without a port",
        "srun",
        "torchrun's variables set for each task of srun",
        "torchrun under srun, its nodes counted as they came",
        "torchrun under srun",
        "mpirun under srun",
        "mpirun on several nodes",
        "mpirun on one node",
    ],
)
def test_every_launcher_is_understood(environ: dict[str, str], expected: Environment):
    assert Environment.discover(environ) == expected


def test_a_step_on_some_nodes_of_the_job_meets_on_the_first_of_its_own():
    step = SRUN | {
        "SLURM_NTASKS": "8",
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_NODELIST": "node10,gpu5",
        "SLURM_STEP_TASKS_PER_NODE": "3,2",
    }
    environment = Environment.discover(step)
    assert environment.world_size == 5
    assert environment.local_world_size == 2
    assert environment.master_addr == "node10"


def test_srun_tells_where_every_rank_should_be():
    assert Environment.discover(SRUN).hosts_of_ranks == ("node09", "node09", "node10", "node10")
    assert Environment.discover(TORCHRUN).hosts_of_ranks == ()


def test_a_batch_script_may_choose_address_and_port_for_its_tasks():
    environment = Environment.discover(SRUN | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "12345"})
    assert (environment.master_addr, environment.master_port) == ("10.0.0.1", 12345)


@pytest.mark.parametrize("job_id", [0, 1, 19999, 20000, 67108863])
def test_a_port_made_of_the_job_id_is_outside_the_ephemeral_range(job_id: int):
    assert 10000 <= Environment.discover(SRUN | {"SLURM_JOB_ID": str(job_id)}).master_port < 32768


@pytest.mark.parametrize(
    ("environ", "keys"),
    [
        (without(TORCHRUN, "WORLD_SIZE"), ["WORLD_SIZE"]),
        (without(TORCHRUN, "RANK"), ["RANK"]),
        (without(TORCHRUN, "LOCAL_RANK"), ["LOCAL_RANK"]),
        (without(TORCHRUN, "MASTER_ADDR"), ["MASTER_ADDR"]),
        (TORCHRUN | {"RANK": "4"}, ["RANK"]),
        (TORCHRUN | {"LOCAL_RANK": "2"}, ["LOCAL_RANK"]),
        (TORCHRUN | {"WORLD_SIZE": "four", "MASTER_PORT": "-1"}, ["WORLD_SIZE", "MASTER_PORT"]),
        (TORCHRUN | {"WORLD_SIZE": "0"}, ["RANK"]),
        (OPEN_MPI, ["MASTER_ADDR"]),
        (without(OPEN_MPI, "OMPI_COMM_WORLD_RANK"), ["OMPI_COMM_WORLD_RANK", "MASTER_ADDR"]),
        (without(SRUN, "SLURM_PROCID"), ["SLURM_PROCID"]),
        (without(SRUN, "SLURM_NTASKS"), ["SLURM_NTASKS"]),
        (SRUN | {"SLURM_PROCID": "4"}, ["SLURM_PROCID"]),
        (SRUN | {"SLURM_JOB_NODELIST": "node[1"}, ["SLURM_JOB_NODELIST"]),
        (SRUN | {"WORLD_SIZE": "4"}, ["RANK", "LOCAL_RANK"]),
        (SRUN | STEP | ALONE, ["WORLD_SIZE"]),
        (SRUN | STEP | TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0"}, ["RANK"]),
        (TORCHRUN | {"MASTER_ADDR": "localhost"}, ["MASTER_ADDR"]),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, ["SLURM_JOB_NUM_NODES"]),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "8"}, ["SLURM_NTASKS_PER_NODE"]),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, ["PMI_SIZE"]),
        (BATCH, ["SLURM_NTASKS"]),
    ],
)
def test_incomplete_and_contradictory_variables_are_refused(environ: dict[str, str], keys: list[str]):
    with pytest.raises(ConfigError) as told:
        Environment.discover(environ)
    assert [mistake.key for mistake in told.value.mistakes] == keys


def test_a_batch_script_without_srun_is_told_to_use_it():
    with pytest.raises(ConfigError, match="start with srun"):
        Environment.discover(BATCH)


def test_variables_say_the_same_again():
    environment = Environment.discover(SRUN)
    assert Environment.discover(environment.variables) == environment
    assert environment.variables["RANK"] == "3"
