"""`mep launch`: what is refused before submission, each with its remedy, and what a submitted job leaves behind."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_mep import cli
from megatron_mep.config.errors import ConfigError
from megatron_mep.launch import Prepared, Wish, prepare
from megatron_mep.launcher.slurm import LaunchError
from megatron_mep.run import load_run
from tests.data.toy import corpus
from tests.launcher.stubs import Slurm
from tests.support.runs import run_tree

NOW = datetime(2030, 1, 1, 12)
CPUS = {"gpus_per_node": 0, "ranks_per_node": 2, "time_limit": "60"}
VALIDATION = {"tokens": 512}
HUGE = {"num_layers": 40, "hidden_size": 8192, "num_attention_heads": 64}
"""Of 33 billion weights."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a prepared corpus."""
    folder = tmp_path_factory.mktemp("text")
    corpus(folder)
    return folder


class Place:
    """A folder with a run file and a cluster's profile."""

    def __init__(self, folder: Path, text: Path) -> None:
        self.folder, self.text = folder, text

    def wish(self, run: dict[str, Any], profile: dict[str, Any], *overrides: str, **options: Any) -> Wish:
        below = {
            "runs": str(self.folder / "runs"),
            "data": {"folder": str(self.text / "corpus")},
            "validation": VALIDATION,
        }
        tree = run_tree(**{**below, **run})
        (self.folder / "run.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
        (self.folder / "cluster.yaml").write_text(yaml.safe_dump({**CPUS, **profile}), encoding="utf-8")
        given = {"nodes": None, "launcher": None, "time": None, **options}
        return Wish(
            run_file=self.folder / "run.yaml",
            overrides=list(overrides),
            cluster=str(self.folder / "cluster.yaml"),
            command="mep launch run.yaml",
            **given,
        )

    def prepared(self, run: dict[str, Any], profile: dict[str, Any], *overrides: str, **options: Any) -> Prepared:
        return prepare(self.wish(run, profile, *overrides, **options), submits=False, now=NOW)

    def told(self, run: dict[str, Any], profile: dict[str, Any], *overrides: str, **options: Any) -> list[str]:
        with pytest.raises(ConfigError) as raised:
            self.prepared(run, profile, *overrides, **options)
        return [str(mistake) for mistake in raised.value.mistakes]


@pytest.fixture
def place(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, text)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    stubs = Slurm(tmp_path)
    for name in ("PATH", "FOLDER"):
        monkeypatch.setenv(name, stubs.environment[name])
    return stubs


def test_the_fewest_nodes_that_hold_the_model_are_asked_for(place: Place):
    assert place.prepared({}, {}).job.nodes == 1
    assert place.prepared({"parallel": {"tensor": 4}}, {}).job.nodes == 2


def test_options_come_before_the_profile(place: Place):
    job = place.prepared({}, {}, nodes=1, launcher="torchrun", time="0:30:00").job
    assert (job.nodes, job.launcher, job.time) == (1, "torchrun", "0:30:00")
    assert place.prepared({}, {"launcher": "deepspeed"}).job.launcher == "deepspeed"


def test_a_run_without_faults_is_rendered_and_nothing_is_written(place: Place):
    prepared = place.prepared({}, {})
    assert f"RUN_FOLDER={place.folder}/runs/smallest\n" in prepared.script
    assert f"train {place.folder}/runs/smallest/launch/20300101-120000/run.yaml" in prepared.script
    assert not (place.folder / "runs").exists()
    assert prepared.warnings == ["whether --time lasts for a checkpoint is not known: state logging.peak_tflops"]


def test_more_ranks_than_the_allocation_has(place: Place):
    assert place.told({"parallel": {"tensor": 4}}, {}, nodes=1) == [
        "--nodes = 1: gives 2 ranks, but one copy of the model takes 4 (tensor 4 x context 1 x pipeline 1); "
        "ask for --nodes 2, or lower one"
    ]


def test_ranks_that_the_layout_does_not_divide(place: Place):
    (told,) = place.told({"training": {"global_batch_size": 4}}, {}, nodes=3)
    assert told == (
        "training.global_batch_size = 4: must be a multiple of micro_batch_size=1 times the 6 data-parallel ranks; "
        "try 6"
    )


def test_a_corpus_that_is_not_prepared(place: Place):
    absent = str(place.folder / "absent")
    told = place.told({"data": {"folder": absent}}, {})
    assert told == [f"data.folder = {absent!r}: must hold a prepared corpus; run `mep prepare RUN`"]


def test_a_missing_tokenizer(place: Place, tmp_path: Path):
    folder, _ = corpus(tmp_path)
    (folder / "tokenizer.model").unlink()
    (told,) = place.told({"data": {"folder": str(folder)}}, {})
    assert told.endswith("tokenizer.model: is missing; run `mep prepare RUN --force`")


def test_a_folder_that_cannot_be_written(place: Place):
    (place.folder / "file").touch()
    (told,) = place.told({"runs": str(place.folder / "file")}, {})
    assert told.startswith(f"runs = '{place.folder}/file': cannot be written: {place.folder}/file is not a folder")
    assert told.endswith("; set runs to one that all nodes share")


def test_a_path_that_directives_cannot_hold(place: Place):
    (told,) = place.told({"runs": str(place.folder / "my runs")}, {})
    assert "a path that SLURM's directives cannot hold; use letters" in told


def test_a_time_shorter_than_a_checkpoint_interval(place: Place):
    (told,) = place.told({"logging": {"peak_tflops": 1e-9}, "checkpoint": {"interval": 4}}, {}, time="10")
    assert told.startswith("--time = '10': is shorter than a checkpoint interval of 4 steps, of ")
    assert "and the 00:05:00 of signal_ahead; ask for --time " in told
    assert "or set checkpoint.interval to " in told


def test_the_remedy_for_a_short_time_is_one(place: Place):
    run = {"logging": {"peak_tflops": 1e-9}, "checkpoint": {"interval": 4}}
    (told,) = place.told(run, {}, time="10")
    enough = told.partition("ask for --time ")[2].partition(",")[0]
    place.prepared(run, {"time_limit": "30-00:00:00"}, time=enough)


def test_a_time_that_the_cluster_does_not_give(place: Place):
    (told,) = place.told({}, {}, time="2:00:00")
    assert told == (
        "--time = '2:00:00': must not exceed time_limit=60 of the cluster's profile; "
        "ask for less: a job that has saved goes on"
    )


def test_a_time_that_is_over_before_it_begins(place: Place):
    (told,) = place.told({}, {"signal_ahead": "10"}, time="10")
    assert told.startswith("--time = '10': leaves no time: ranks are told to save 00:10:00 ahead (signal_ahead); ")


def test_more_nodes_than_the_cluster_gives(place: Place):
    (told,) = place.told({"training": {"global_batch_size": 6}}, {"max_nodes": 2}, nodes=3)
    assert told.startswith("--nodes = 3: must not exceed max_nodes=2 of the cluster's profile; ask for --nodes 2")


def test_a_model_that_does_not_fit_the_device(place: Place):
    profile = {"gpus_per_node": 8, "ranks_per_node": 1, "device": "a100"}
    (told,) = place.told({"model": HUGE, "training": {"precision": "bf16"}}, profile)
    assert told.startswith("parallel.tensor = 1: leaves a rank with ")
    assert "more than the 80 GB of A100 SXM 80 GB; raise it, " in told


def test_a_device_that_nobody_states_is_a_warning(place: Place):
    profile = {"gpus_per_node": 2, "ranks_per_node": None}
    assert place.prepared({}, profile).warnings == [
        "the profile states no device: memory and the time of a step are not known"
    ]


def test_tensor_ranks_on_several_nodes_are_a_warning(place: Place):
    assert place.prepared({"parallel": {"tensor": 4}}, {}).warnings[0] == (
        "tensor ranks share every layer: 4 of them lie on several nodes of 2, which is slow"
    )


def test_a_stop_file(place: Place):
    (place.folder / "runs" / "smallest").mkdir(parents=True)
    (place.folder / "runs" / "smallest" / "STOP").touch()
    (told,) = place.told({}, {})
    assert told == f"{place.folder}/runs/smallest/STOP: stops the run at its first step; remove it"


def test_a_finished_run_unless_more_steps_are_asked_of_it(place: Place):
    (place.folder / "runs" / "smallest").mkdir(parents=True)
    (place.folder / "runs" / "smallest" / "finished.json").write_text('{"step": 4}', encoding="utf-8")
    (told,) = place.told({}, {})
    assert "is finished at step 4; raise it, or give another name" in told
    assert place.prepared({}, {}, "training.steps=5").run.training.steps == 5


def test_a_run_that_a_job_writes_already(place: Place, slurm: Slurm, monkeypatch: pytest.MonkeyPatch):
    prepare(place.wish({}, {}), submits=True, now=NOW).submit()
    monkeypatch.setenv("QUEUE", "4243|PENDING|(Resources)\n")
    (told,) = place.told({}, {})
    assert told.startswith("name = 'smallest': is written by job 4243 already, which is PENDING ((Resources)); ")


def test_a_machine_without_slurm(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(place.folder))
    with pytest.raises(ConfigError, match=r"sbatch: is not on the PATH; run this on a login node .* add --dry-run"):
        prepare(place.wish({}, {}), submits=True, now=NOW)


def test_mistakes_of_profile_run_and_options_are_told_at_once(place: Place):
    told = place.told({"training": {"stepz": 3}, "runs": "my runs"}, {"gpus_per_nod": 3})
    assert any(line.startswith("gpus_per_nod = 3: ") for line in told)
    assert any(line.startswith("training.stepz = 3: ") for line in told)
    told = place.told({"parallel": {"tensor": 4}, "data": {"folder": "absent"}}, {}, nodes=1, time="600")
    assert [line.partition(" ")[0] for line in told] == ["--nodes", "data.folder", "--time"]


def test_a_submitted_job_leaves_all_that_says_what_it_was(place: Place, slurm: Slurm):
    wish = place.wish({}, {}, "training.steps=7")
    told = prepare(wish, submits=True, now=NOW).submit()
    run_folder = place.folder / "runs" / "smallest"
    folder = run_folder / "launch" / "20300101-120000"
    assert slurm.asked == [f"sbatch --parsable {folder}/job.sbatch (without nothing, SLURM_JOB_ID unset)"]
    assert told.startswith("job 4243: smallest on 1 nodes, 2 ranks by srun, for 60\n")
    assert f"tail -F {run_folder}/logs/4243.log" in told
    assert (run_folder / "logs").is_dir()
    assert load_run(folder / "run.yaml").training.steps == 7
    assert "torch==" in (folder / "environment.txt").read_text(encoding="utf-8")
    assert (folder / "code.txt").read_text(encoding="utf-8").startswith("megatron-mep 0.")
    assert (folder / "command.txt").read_text(encoding="utf-8") == "mep launch run.yaml\n"
    assert '"job": "4243"' in (run_folder / "launch" / "jobs.jsonl").read_text(encoding="utf-8")


def test_a_job_that_slurm_does_not_take(place: Place, slurm: Slurm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SBATCH_FAILS", "invalid partition specified")
    with pytest.raises(
        LaunchError, match=r"sbatch: does not take the job \(invalid partition specified\); correct the"
    ):
        prepare(place.wish({}, {}), submits=True, now=NOW).submit()


def test_of_several_clusters_only_the_number_counts(place: Place, slurm: Slurm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SBATCH_SAYS", "77;second")
    assert prepare(place.wish({}, {}), submits=True, now=NOW).submit().startswith("job 77: ")


def test_a_dry_run_prints_the_script(place: Place, capsys: pytest.CaptureFixture[str]):
    wish = place.wish({}, {})
    assert cli.main(["launch", str(wish.run_file), "--cluster", wish.cluster, "--dry-run"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("#!/bin/bash\n# smallest on 1 x 2 ranks")
    assert told.err.startswith("mep: warning: whether --time lasts")


def test_a_dry_run_here_prints_the_command(place: Place, capsys: pytest.CaptureFixture[str]):
    wish = place.wish({}, {})
    assert cli.main(["launch", str(wish.run_file), "--local", "2", "--dry-run", "training.steps=3"]) == 0
    assert "--num_gpus 2 --no_local_rank" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "told"), [
    (["--nodes", "2"], "mep: --nodes = 2: is of a cluster; leave it out"),
    (["--launcher", "srun"], "mep: --launcher = 'srun': is of a cluster"),
    (["parallel.tensor=4"], "mep: parallel.tensor = 4: must divide the world size 2"),
])  # fmt: skip
def test_what_cannot_be_launched_here(
    place: Place, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    wish = place.wish({}, {})
    assert cli.main(["launch", str(wish.run_file), "--local", "2", *arguments]) == 2
    assert capsys.readouterr().err.startswith(told)


@pytest.mark.parametrize("arguments", [[], ["--cluster", "a", "--local", "2"], ["--cluster", "a", "--time", "a day"]])
def test_a_wrong_command_ends_with_exit_code_2(arguments: list[str]):
    with pytest.raises(SystemExit) as left:
        cli.main(["launch", "run.yaml", *arguments])
    assert left.value.code == 2
