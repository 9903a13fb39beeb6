"""What a job does with the end of its ranks, under SLURM's commands in miniature."""

import json

import pytest

from tests.launcher.stubs import FINISH, SAVE, Slurm, script


def last_note(slurm: Slurm) -> dict[str, object]:
    lines = (slurm.folder / "run" / "launch" / "jobs.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(lines[-1])


def test_a_finished_run_is_the_end(slurm: Slurm):
    done = slurm.run(script(slurm), RANKS=FINISH + "exit 0")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert slurm.asked == []
    assert "finished" in done.stdout
    note = last_note(slurm)
    assert (note["event"], note["job"], note["exit_code"], note["reason"]) == ("end", "4242", "0", "finished")


def test_the_mark_decides_and_not_the_exit_code(slurm: Slurm):
    assert slurm.run(script(slurm), RANKS=FINISH + "exit 143").returncode == 0
    assert slurm.asked == []


def test_at_its_time_limit_a_job_is_requeued_before_its_ranks_have_ended(slurm: Slurm):
    """SLURM kills the script within its KillWait, ranks that still write or not."""
    limit = {"JOB_STATE": "COMPLETING", "JOB_REASON": "TimeLimit"}
    slurm.run(script(slurm), RANKS="kill -TERM $PPID; sleep 2", **limit)
    assert slurm.asked == ["requeue 4242"]


@pytest.mark.parametrize(("profile", "works"), [({"go_on_by": "resubmit"}, "yes"), ({}, "no")])
def test_at_its_time_limit_another_job_waits_for_the_end_of_this_one(slurm: Slurm, profile: dict[str, str], works: str):
    limit = {"JOB_STATE": "COMPLETING", "JOB_REASON": "TimeLimit", "REQUEUE_WORKS": works}
    done = slurm.run(script(slurm, **profile), RANKS="kill -TERM $PPID; sleep 2; exit 75", **limit)
    assert "at its time limit: going on by resubmit" in done.stdout
    submitted = [line for line in slurm.asked if line.startswith("sbatch")]
    assert len(submitted) == 1
    assert "--dependency=afterany:4242 " in submitted[0]
    assert done.returncode == 75


def test_a_job_that_is_cancelled_is_not_requeued(slurm: Slurm):
    cancelled = {"JOB_STATE": "CANCELLED", "JOB_REASON": "None"}
    slurm.run(script(slurm), RANKS="kill -TERM $PPID; sleep 1; exit 75", **cancelled)
    assert slurm.asked == []


def test_an_exit_code_of_0_without_the_mark_is_no_end(slurm: Slurm):
    """As of ranks that were preempted by SIGTERM, under a launcher that makes nothing of it."""
    slurm.run(script(slurm), RANKS=SAVE + "exit 0")
    assert slurm.asked == ["requeue 4242"]


def test_the_mark_of_an_earlier_end_does_not_hide_a_crash(slurm: Slurm):
    (slurm.folder / "run").mkdir()
    (slurm.folder / "run" / "finished.json").write_text("{}", encoding="utf-8")
    slurm.run(script(slurm), RANKS="exit 1")
    assert slurm.asked == ["requeue 4242"]


def test_a_run_that_is_finished_already_is_left_so(slurm: Slurm):
    (slurm.folder / "run").mkdir()
    (slurm.folder / "run" / "finished.json").write_text("{}", encoding="utf-8")
    assert slurm.run(script(slurm), RANKS="exit 0").returncode == 0
    assert slurm.asked == []


@pytest.mark.parametrize("code", [1, 7, 75, 137, 143])
def test_what_saved_or_crashed_goes_on_as_the_same_job(slurm: Slurm, code: int):
    done = slurm.run(script(slurm), RANKS=SAVE + f"exit {code}")
    assert slurm.asked == ["requeue 4242"]
    assert ("saved" if code == 75 else f"crashed with {code}") in done.stdout
    assert last_note(slurm)["next"] == "requeue"


@pytest.mark.parametrize("code", [2, 3])
def test_what_would_come_again_is_the_end(slurm: Slurm, code: int):
    assert slurm.run(script(slurm), RANKS=f"exit {code}").returncode == code
    assert slurm.asked == []


def test_a_stop_file_ends_a_job_that_has_saved(slurm: Slurm):
    done = slurm.run(script(slurm), RANKS=SAVE + 'touch "$FOLDER/run/STOP"; exit 75')
    assert done.returncode == 0
    assert "stopped by" in done.stdout
    assert slurm.asked == []


def test_a_stop_file_keeps_a_job_from_starting(slurm: Slurm):
    (slurm.folder / "run").mkdir()
    (slurm.folder / "run" / "STOP").touch()
    done = slurm.run(script(slurm))
    assert done.returncode == 0
    assert "remove it to let the run go on" in done.stdout
    assert not (slurm.folder / "ranks.arguments").exists()


def test_starts_without_a_newer_checkpoint_are_bounded(slurm: Slurm):
    for restarts in ("0", "1"):
        slurm.run(script(slurm), RANKS="exit 9", SLURM_RESTART_COUNT=restarts)
    assert slurm.asked == ["requeue 4242"] * 2
    done = slurm.run(script(slurm), RANKS="exit 9", SLURM_RESTART_COUNT="2")
    assert done.returncode == 9
    assert "gives up: 3 starts in a row" in done.stdout
    assert slurm.asked == ["requeue 4242"] * 2


def test_a_newer_checkpoint_starts_the_count_anew(slurm: Slurm):
    for restarts in ("0", "1"):
        slurm.run(script(slurm), RANKS="exit 9", SLURM_RESTART_COUNT=restarts)
    slurm.run(script(slurm), RANKS=SAVE + "exit 9", SLURM_RESTART_COUNT="2")
    done = slurm.run(script(slurm), RANKS="exit 9", SLURM_RESTART_COUNT="3")
    assert "start 1 of at most 3" in done.stdout
    assert slurm.asked == ["requeue 4242"] * 4


def test_starts_that_never_came_to_their_end_count_too(slurm: Slurm):
    """As where the node of the batch script itself goes down each time, and SLURM requeues the job."""
    for restarts in range(3):
        slurm.run(script(slurm), RANKS="kill -KILL $PPID", SLURM_RESTART_COUNT=str(restarts))
    done = slurm.run(script(slurm), SLURM_RESTART_COUNT="3")
    assert done.returncode == 1
    assert "gives up: 3 starts in a row came to no newer checkpoint" in done.stdout


def test_a_job_that_somebody_submits_anew_has_all_its_starts(slurm: Slurm):
    for restarts in ("0", "1", "2"):
        slurm.run(script(slurm), RANKS="exit 9", SLURM_RESTART_COUNT=restarts)
    assert "start 1 of at most 3" in slurm.run(script(slurm), RANKS="exit 9").stdout


def test_where_no_requeue_is_allowed_another_job_goes_on(slurm: Slurm):
    done = slurm.run(script(slurm, go_on_by="resubmit"), RANKS=SAVE + "exit 75")
    assert done.returncode == 0
    assert "goes on as job 4243" in done.stdout
    assert slurm.asked == [
        f"sbatch --parsable --dependency=afterany:4242 --nodes=2 {slurm.folder}/job.sbatch "
        "(without nothing, SLURM_JOB_ID unset)"
    ]


def test_a_refused_requeue_becomes_another_job_of_the_same_task(slurm: Slurm):
    slurm.run(script(slurm), RANKS=SAVE + "exit 75", REQUEUE_WORKS="no", SLURM_ARRAY_TASK_ID="3")
    assert slurm.asked[0] == "requeue 4242"
    assert "--array=3 " in slurm.asked[1]


def test_a_job_that_can_neither_be_requeued_nor_submitted_says_so(slurm: Slurm):
    done = slurm.run(script(slurm), RANKS=SAVE + "exit 75", REQUEUE_WORKS="no", SBATCH_FAILS="no such account")
    assert done.returncode == 1
    assert "could be neither requeued nor submitted again" in done.stdout
    assert "no such account" in done.stderr


@pytest.mark.parametrize(("state", "reason", "goes_on"), [
    ("TIMEOUT", "TimeLimit", True),
    ("COMPLETING", "TimeLimit", True),
    ("CANCELLED", "None", False),
    ("COMPLETING", "None", False),
    ("PENDING", "BeginTime", False),
])  # fmt: skip
def test_a_job_goes_on_unless_it_was_cancelled_or_slurm_sees_to_it(
    slurm: Slurm, state: str, reason: str, goes_on: bool
):
    slurm.run(script(slurm), RANKS=SAVE + "exit 143", JOB_STATE=state, JOB_REASON=reason)
    assert slurm.asked == (["requeue 4242"] if goes_on else [])


def test_a_bad_node_is_left_out_of_another_job(slurm: Slurm):
    done = slurm.run(script(slurm), HEALTHY="node1", MEP_WITHOUT="node7")
    assert done.returncode == 0
    assert "unhealthy: node2; goes on as job 4243 without" in done.stdout
    assert "--exclude=node7,node2 " in slurm.asked[0]
    assert not (slurm.folder / "ranks.arguments").exists()


def test_a_check_that_no_node_passes_excludes_none(slurm: Slurm):
    done = slurm.run(script(slurm), HEALTHY="")
    assert done.returncode == 2
    assert "no node passes the check" in done.stdout
    assert slurm.asked == []


def test_usr1_reaches_the_ranks_and_the_job_goes_on(slurm: Slurm):
    """The stub stands for srun, which hands the signal on."""
    ranks = f"trap 'touch \"$FOLDER/told\"; {SAVE} exit 75' USR1; kill -USR1 $PPID; while :; do sleep 0.05; done"
    done = slurm.run(script(slurm), RANKS=ranks)
    assert (slurm.folder / "told").exists()
    assert "USR1: asking the ranks to save" in done.stdout
    assert "saved, asked to save ahead of its end" in done.stdout
    assert slurm.asked == ["requeue 4242"]


def test_the_first_rank_knows_better_than_its_launcher(slurm: Slurm):
    noted = (
        'echo "{\\"event\\": \\"end\\", \\"reason\\": \\"x\\", \\"exit_code\\": 3}" >>"$FOLDER/run/attempts.jsonl"; '
    )
    done = slurm.run(script(slurm, "torchrun"), RANKS=noted + "exit 1")
    assert done.returncode == 3
    # not so the one before
    assert slurm.run(script(slurm, "torchrun"), RANKS="exit 2").returncode == 2


def test_an_evaluation_ends_with_its_exit_code(slurm: Slurm):
    text = script(slurm).replace("FINISHED=$RUN_FOLDER/finished.json", "FINISHED=''")
    assert slurm.run(text, RANKS="exit 0").returncode == 0
    assert slurm.asked == []
    slurm.run(text, RANKS="exit 1")
    assert slurm.asked == ["requeue 4242"]
