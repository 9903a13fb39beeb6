"""A run that SLURM stops, by whatever means it has, saves, is started again and ends as the undisturbed one."""

from datetime import datetime, timedelta

import pytest

from tests.slurm.deadly import PACE
from tests.slurm.jobs import AGENTS, LAUNCHERS, Desk, Recoveries, TrainingJob

SLOW = {PACE: "0.5"}


def reasons(job: TrainingJob) -> list[str]:
    return [line["reason"] for line in job.attempts if line["event"] == "end"]


@pytest.mark.parametrize("launcher", ["srun", *(pytest.param(name, marks=pytest.mark.slow) for name in AGENTS)])
def test_usr1_saves_and_goes_on(desk: Desk, undisturbed: TrainingJob, recoveries: Recoveries, launcher: str):
    job = desk.launch(f"usr1-{launcher}", launcher=launcher, orders=SLOW)
    job.wait_for_step(6)
    with recoveries.timed(f"USR1 to the batch script, {launcher}", job):
        # what --signal=B:USR1@... does ahead of the time limit
        desk.cluster.told("scancel", "--batch", "--signal=USR1", job.number)
    job.hurry()
    job.wait_for_finish()
    assert job.losses == undisturbed.losses
    assert reasons(job) == ["SIGUSR1", "finished"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_preemption_by_term_alone_goes_on(desk: Desk, undisturbed: TrainingJob, recoveries: Recoveries, launcher: str):
    job = desk.launch(f"preempted-{launcher}", launcher=launcher, orders=SLOW, partition="low")
    job.wait_for_step(6)
    with recoveries.timed(f"preemption by TERM alone, the other job takes 5 s, {launcher}", job):
        everything = f"--nodes={len(desk.cluster.nodes)}"
        desk.cluster.told("sbatch", "-p", "high", everything, "--exclusive", "--output=/dev/null", "--wrap=sleep 5")
    job.hurry()
    job.wait_for_finish()
    assert job.losses == undisturbed.losses
    # where there is an agent, a shell on the node hands it on as USR1
    assert reasons(job) == ["SIGTERM" if launcher == "srun" else "SIGUSR1", "finished"]


@pytest.mark.slow
def test_ranks_are_asked_ahead_of_the_time_limit(desk: Desk, undisturbed: TrainingJob, recoveries: Recoveries):
    job = desk.launch("ahead", orders={PACE: "1"})
    job.wait_for_step(2)
    with recoveries.timed("a minute ahead of the time limit", job):
        _end_after(desk, job, 65)
        # SLURM looks at its clock twice a minute
        job.wait(lambda: "asking the ranks to save" in job.log, 60, "USR1")
    job.hurry()
    job.wait_for_finish()
    assert job.losses == undisturbed.losses
    assert reasons(job) == ["SIGUSR1", "finished"]


@pytest.mark.slow
@pytest.mark.parametrize("go_on_by", ["requeue", "resubmit"])
def test_a_job_at_its_time_limit_goes_on(desk: Desk, undisturbed: TrainingJob, recoveries: Recoveries, go_on_by: str):
    job = desk.launch(f"late-{go_on_by}", orders={PACE: "1"}, go_on_by=go_on_by)
    job.wait_for_step(2)
    with recoveries.timed(f"the time limit itself, goes on by {go_on_by}", job):
        _end_after(desk, job, 1)
    job.hurry()
    job.wait_for_finish()
    assert job.losses == undisturbed.losses


@pytest.mark.slow
def test_a_job_that_is_cancelled_saves_and_stays_so(desk: Desk, undisturbed: TrainingJob):
    job = desk.launch("cancelled", orders=SLOW)
    job.wait_for_step(6)
    desk.cluster.told("scancel", job.number)
    job.wait_for_state("CANCELLED")
    job.wait(lambda: reasons(job) == ["SIGTERM"], 30, "the end of the attempt")
    assert desk.cluster.told("squeue", "--noheader") == ""
    told = desk.mep("status", str(job.folder)).stdout
    assert "cancelled: ended" in told
    job.hurry()
    again = desk.launch("cancelled")
    again.wait_for_finish()
    assert again.losses == undisturbed.losses


def _end_after(desk: Desk, job: TrainingJob, seconds: int) -> None:
    end = datetime.now() + timedelta(seconds=seconds)
    desk.cluster.told("scontrol", "update", f"JobId={job.number}", f"EndTime={end:%Y-%m-%dT%H:%M:%S}")
