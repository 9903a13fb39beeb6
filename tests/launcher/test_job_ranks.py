"""How a job starts its ranks by each launcher, and what these are told, under SLURM's commands in miniature."""

import json
import sys
from base64 import urlsafe_b64decode

from tests.launcher.stubs import FINISH, SAVE, Slurm, script

RANK = """
import os, pathlib, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
pathlib.Path(os.environ["FOLDER"], "ready").touch()
signal.pause()
"""


def test_ranks_are_tasks_that_find_each_other(slurm: Slurm):
    slurm.run(script(slurm, cpus_per_task=6), RANKS=FINISH, SLURM_CPUS_PER_TASK="6")
    arguments = slurm.arguments
    command = ["/venv/bin/python", "-u", "-m", "megatron_mep", "train", f"{slurm.folder}/run/run.yaml"]
    assert arguments[-len(command) :] == command
    assert {"--ntasks=4", "--ntasks-per-node=2", "--distribution=block", "--kill-on-bad-exit=0"} <= set(arguments)
    assert slurm.variable("MASTER_ADDR") == "node1"
    assert slurm.variable("MASTER_PORT") == str(10000 + 4242)
    assert slurm.variable("SRUN_CPUS_PER_TASK") == "6"
    assert slurm.variable("OMP_NUM_THREADS") == "6"
    assert slurm.variable("HF_HUB_OFFLINE") == "1"


def test_ports_stay_below_those_that_the_kernel_hands_out(slurm: Slurm):
    slurm.run(script(slurm), RANKS=FINISH, SLURM_JOB_ID="39999999")
    assert slurm.variable("MASTER_PORT") == "29999"


def test_ranks_know_when_to_stop(slurm: Slurm):
    slurm.run(script(slurm), RANKS=FINISH, TZ="UTC")
    # 2030-01-01 01:00 less ten minutes
    assert slurm.variable("MEP_END_TIME") == str(1893456000 + 3600 - 600)


def test_a_job_without_an_end_states_none(slurm: Slurm):
    slurm.run(script(slurm), RANKS=FINISH, END_TIME="Unknown", MEP_END_TIME="12")
    assert slurm.variable("MEP_END_TIME") is None


def test_torchrun_is_started_once_a_node(slurm: Slurm):
    slurm.run(script(slurm, "torchrun"), RANKS=FINISH)
    arguments = slurm.arguments
    assert {"--ntasks=2", "--ntasks-per-node=1", "--nnodes=2", "--nproc-per-node=2", "--master-addr=node1"} <= set(
        arguments
    )
    assert "--node-rank=@NODE@" in arguments


def test_deepspeed_is_told_of_all_nodes(slurm: Slurm):
    slurm.run(script(slurm, "deepspeed"), RANKS=FINISH)
    (encoded,) = [word.removeprefix("--world_info=") for word in slurm.arguments if word.startswith("--world_info=")]
    assert json.loads(urlsafe_b64decode(encoded)) == {"node1": [0, 1], "node2": [0, 1]}
    assert slurm.arguments[-4:] == ["--module", "megatron_mep", "train", f"{slurm.folder}/run/run.yaml"]


def test_a_shell_on_each_node_hands_signals_on(slurm: Slurm):
    """TERM and USR1 come to the launcher's ranks as USR1, and its exit code comes back."""
    rank = slurm.folder / "rank.py"
    rank.write_text(RANK, encoding="utf-8")
    agent = slurm.folder / "agent"
    agent.write_text(f'echo $1 >"$FOLDER/node"\n{sys.executable} {rank} &\nwait $!\n', encoding="utf-8")
    # srun starts the shell of a node, whose launcher is the file above
    of_node = (
        f'while [ "$1" != bash ]; do shift; done; SLURM_NODEID=1 bash -c "$3" agent bash {agent} @NODE@ & shell=$!; '
    )
    signals = 'until [ -e "$FOLDER/ready" ]; do sleep 0.05; done; kill -TERM $shell; wait $shell; exit $?'
    done = slurm.run(script(slurm, "torchrun"), RANKS=SAVE + of_node + signals)
    assert (slurm.folder / "node").read_text(encoding="utf-8") == "1\n"
    assert "saved" in done.stdout, done.stdout + done.stderr
