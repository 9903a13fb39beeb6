"""Ranks on this machine."""

import sys

from megatron_mep.launcher.local import local_command, local_environment


def test_ranks_are_started_by_deepspeed():
    command = local_command(4, "my_run.yaml", ["training.steps=3"])
    assert command[:5] == [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "4"]
    assert command[-5:] == ["--module", "megatron_mep", "train", "my_run.yaml", "training.steps=3"]
    assert "--no_local_rank" in command


def test_one_rank_needs_no_launcher():
    assert local_command(1, "my_run.yaml", []) == [sys.executable, "-m", "megatron_mep", "train", "my_run.yaml"]


def test_ranks_share_the_cores():
    assert local_environment({}, ranks=4, cores=8)["OMP_NUM_THREADS"] == "2"
    assert local_environment({}, ranks=4, cores=2)["OMP_NUM_THREADS"] == "1"


def test_what_the_user_says_of_threads_holds():
    assert local_environment({"OMP_NUM_THREADS": "7"}, ranks=4, cores=8)["OMP_NUM_THREADS"] == "7"
