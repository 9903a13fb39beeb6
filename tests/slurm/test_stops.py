"""A run that SLURM stops, by whatever means it has, saves, is started again and ends as the undisturbed one."""

import pytest

from tests.slurm.jobs import Desk, Recoveries, TrainingJob


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "deepspeed"])
def test_usr1_saves_and_goes_on(desk: Desk, undisturbed: TrainingJob, recoveries: Recoveries, launcher: str):
    job = desk.launch(f"usr1-{launcher}", launcher=launcher)
    job.wait_for_step(6)
    with recoveries.timed(f"USR1 to the batch script, {launcher}", job):
        # what --signal=B:USR1@... does ahead of the time limit
        desk.cluster.told("scancel", "--batch", "--signal=USR1", job.number)
    job.wait_for_finish()
    assert job.losses == undisturbed.losses
    assert [line["reason"] for line in job.attempts if line["event"] == "end"] == ["SIGUSR1", "finished"]
