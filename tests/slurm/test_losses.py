"""A run that loses a node, its network, a rank or its disk goes on and ends as the undisturbed one, or says why not."""

import shutil
from pathlib import Path

import pytest

from tests.slurm.cluster import wait_until
from tests.slurm.deadly import PACE
from tests.slurm.jobs import LAUNCHERS, Desk, Recoveries, TrainingJob

SLOW = {PACE: "0.5"}
REPAIR_S = 90.0


@pytest.mark.parametrize("lost", ["batch host", pytest.param("other node", marks=pytest.mark.slow)])
def test_a_node_that_is_powered_off(desk: Desk, undisturbed: TrainingJob, recoveries: Recoveries, lost: str):
    job = desk.launch(f"power-{lost.split()[0]}", orders=SLOW)
    job.wait_for_step(6)
    node = job.nodes[0 if lost == "batch host" else -1]
    with recoveries.timed(f"node powered off: {lost}", job):
        desk.cluster.power_off(node)
    job.hurry()
    assert node not in job.nodes
    job.wait_for_finish()
    desk.cluster.boot(node)
    _wait_for_repair(desk)
    assert job.losses == undisturbed.losses


@pytest.mark.slow
def test_a_node_whose_network_is_cut(desk: Desk, undisturbed: TrainingJob, recoveries: Recoveries):
    job = desk.launch("cut", orders=SLOW)
    job.wait_for_step(6)
    node = job.nodes[-1]
    with recoveries.timed("network of a node cut", job):
        desk.cluster.cut(node)
    job.hurry()
    # what still runs on it must not write
    desk.cluster.join(node)
    job.wait_for_finish()
    _wait_for_repair(desk)
    assert job.losses == undisturbed.losses


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_exits_7(desk: Desk, undisturbed: TrainingJob, recoveries: Recoveries, launcher: str):
    job = desk.launch(f"exit-{launcher}", launcher=launcher, orders=SLOW)
    job.wait_for_step(6)
    with recoveries.timed(f"a rank exits with 7, {launcher}", job):
        job.order("rank_1", "7")
        job.wait(lambda: "going on by" in job.log, 120, "the script's decision")
        job.order("rank_1", None)
    job.hurry()
    job.wait_for_finish()
    assert job.losses == undisturbed.losses


@pytest.mark.slow
def test_a_crash_loop_ends(desk: Desk):
    job = desk.launch("loop", orders={"rank_1": "7"})
    job.wait_for_state("FAILED")
    assert job.starts == 3
    assert job.steps == []
    assert "gives up: 3 starts in a row came to no newer checkpoint" in job.log
    told = desk.mep("status", str(job.folder)).stdout
    assert "gives up" in told


@pytest.mark.slow
def test_a_bad_node_is_left_out(desk: Desk, undisturbed: TrainingJob):
    bad = desk.cluster.nodes[0]
    job = desk.launch("bad-node", node_check=f'[ "$(hostname)" != {bad} ]')
    job.wait_for_finish()
    assert job.losses == undisturbed.losses
    assert f"unhealthy: {bad}; goes on as job" in job.log
    assert [line["nodes"] for line in job.attempts if line["event"] == "start"] == [f"{bad.rpartition('-')[0]}-[2-3]"]


@pytest.mark.slow
def test_a_full_disk_during_a_save(desk: Desk, undisturbed: TrainingJob, small_disk: Path):
    job = desk.launch("full", runs=small_disk, orders=SLOW)
    job.wait_for_step(6)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free))
    job.wait_for_state("FAILED", "COMPLETED")
    log = job.log
    filler.unlink()
    job.hurry()
    again = desk.launch("full", runs=small_disk)
    again.wait_for_finish()
    assert again.losses == undisturbed.losses
    assert "No space left" in log


def _wait_for_repair(desk: Desk) -> None:
    wait_until(lambda: len(desk.cluster.idle_nodes()) == len(desk.cluster.nodes), REPAIR_S, "all nodes")
