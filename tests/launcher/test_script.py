"""A job's batch script: what the renderer makes of a profile, and that shells and the shipped scripts agree with it."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_mep.launcher.profile import Cluster, Container
from megatron_mep.launcher.script import Job, batch_script, supervision

LAUNCH = Path(__file__).parents[2] / "launch"
JOB = Job(
    name="mep_7b",
    run_file="/scratch/runs/mep_7b/launch/20300101-120000/run.yaml",
    run_folder="/scratch/runs/mep_7b",
    work_folder="/scratch",
    nodes=4,
    time="12:00:00",
    launcher="srun",
    python="/venv/bin/python",
)
GPUS = Cluster(
    partition="gpu",
    account="science",
    qos="high",
    sbatch_options=("--exclusive",),
    gpus_per_node=8,
    cpus_per_task=12,
    memory="0",
    time_limit="1-00:00:00",
    modules=("cuda/12.8", "gcc"),
    setup=("source /venv/bin/activate",),
    environment={"NCCL_DEBUG": "WARN", "GREETING": "it's me"},
    network_interface="ib0",
    node_check="nvidia-smi | grep 'H100'",
    signal_ahead="10",
)
OF_GPUS = """\
#!/bin/bash
# mep_7b on 4 x 8 ranks, written by `mep launch`
#SBATCH --job-name=mep_7b
#SBATCH --partition=gpu
#SBATCH --account=science
#SBATCH --qos=high
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --mem=0
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/scratch/runs/mep_7b/logs/%j.log
#SBATCH --chdir=/scratch
#SBATCH --exclusive

# the run
RUN_FOLDER=/scratch/runs/mep_7b
COMMAND=(-m megatron_mep train /scratch/runs/mep_7b/launch/20300101-120000/run.yaml)
FINISHED=$RUN_FOLDER/finished.json PROGRESS=$RUN_FOLDER/checkpoints/latest

# the cluster
LAUNCHER=srun RANKS_PER_NODE=8 PYTHON=/venv/bin/python
SRUN_OPTIONS=()
NODE_CHECK='nvidia-smi | grep '"'"'H100'"'"'' CHECK_TIMEOUT_S=300
GO_ON_BY=requeue MAX_STARTS=3 SIGNAL_AHEAD_S=600
module load cuda/12.8 gcc
source /venv/bin/activate
export NCCL_SOCKET_IFNAME=ib0
export GLOO_SOCKET_IFNAME=ib0
export NCCL_DEBUG=WARN
export GREETING='it'"'"'s me'

"""
CPUS = Cluster(gpus_per_node=0, ranks_per_node=2, time_limit="1:00:00", go_on_by="resubmit", max_starts=5)
OF_CPUS = """\
#!/bin/bash
# mep_7b on 4 x 2 ranks, written by `mep launch`
#SBATCH --job-name=mep_7b
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/scratch/runs/mep_7b/logs/%j.log
#SBATCH --chdir=/scratch

# the run
RUN_FOLDER=/scratch/runs/mep_7b
COMMAND=(-m megatron_mep train /scratch/runs/mep_7b/launch/20300101-120000/run.yaml)
FINISHED=$RUN_FOLDER/finished.json PROGRESS=$RUN_FOLDER/checkpoints/latest

# the cluster
LAUNCHER=torchrun RANKS_PER_NODE=2 PYTHON=/venv/bin/python
SRUN_OPTIONS=()
NODE_CHECK='' CHECK_TIMEOUT_S=300
GO_ON_BY=resubmit MAX_STARTS=5 SIGNAL_AHEAD_S=300
export DS_ACCELERATOR=cpu
export CUDA_VISIBLE_DEVICES=''

"""


@pytest.mark.parametrize(
    ("job", "cluster", "head"),
    [(JOB, GPUS, OF_GPUS), (replace(JOB, launcher="torchrun"), CPUS, OF_CPUS)],
    ids=["GPUs", "CPUs"],
)
def test_a_script_is_what_it_was(job: Job, cluster: Cluster, head: str):
    assert batch_script(job, cluster) == head + supervision()


def test_ranks_of_a_container_see_the_folders_of_the_job():
    container = Container(image="/images/mep.sqsh", mounts=("/data:/data:ro",), options=("--no-container-mount-home",))
    script = batch_script(JOB, GPUS.model_copy(update={"container": container}))
    assert (
        "SRUN_OPTIONS=(--container-image=/images/mep.sqsh "
        "--container-mounts=/data:/data:ro,/scratch:/scratch,/scratch/runs/mep_7b:/scratch/runs/mep_7b "
        "--container-workdir=/scratch --no-container-mount-home)\n"
    ) in script


@pytest.mark.parametrize("cluster", [GPUS, CPUS], ids=["GPUs", "CPUs"])
def test_a_script_is_one_for_the_shell(cluster: Cluster):
    checked = subprocess.run(
        ["bash", "-n"], input=batch_script(JOB, cluster), text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("name", ["pretrain", "evaluate", "study"])
def test_a_shipped_script_ends_as_rendered_ones_do(name: str):
    text = (LAUNCH / f"{name}.sbatch").read_text(encoding="utf-8")
    assert text.endswith("\n" + supervision())
    assert "EDIT" in text.partition(supervision())[0]


@pytest.mark.parametrize("file", sorted([*LAUNCH.glob("*.sbatch"), *LAUNCH.glob("*.sh")]), ids=lambda file: file.name)
def test_a_shipped_script_is_one_for_the_shell(file: Path):
    checked = subprocess.run(["bash", "-n", file], text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
