"""`mep harness` on a checkpoint of a tiny run: alone, on ranks that share it, and as its export is asked."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from megatron_mep import cli
from megatron_mep.parallel.environment import Environment
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import describe_rank, job, train_on
from tests.harness.by_hand import ByHand
from tests.harness.local_tasks import CHOICE, MAX_GEN_TOKS, NUM_QUESTIONS, ROLLING, TASKS, UNTIL, WRITTEN, write_tasks
from tests.harness.strange_tasks import DRAWN, UNSAFE, write_strange_tasks
from tests.support.distributed import joined
from tests.support.distributed import run as run_ranks

# imported here, it need not be in every rank
pytest.importorskip("lm_eval.evaluator", reason="needs pip install 'megatron-mep[harness]'")

STEPS = 60
MAX_LENGTH = 48
"""Three times the training length; the rolling texts are longer."""
ROUNDING = 1e-5
"""What another layout or batch may change of a log-likelihood, relative."""
EXPORTED = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("harness")


@pytest.fixture(scope="module")
def tasks(folder: Path) -> Path:
    return write_tasks(folder)


@pytest.fixture(scope="module")
def strange(folder: Path) -> Path:
    return write_strange_tasks(folder)


@pytest.fixture(scope="module")
def trained(folder: Path) -> RunConfig:
    corpus(folder)
    learned = {"model.encoding.kernels": "[{kernel: log}, {kernel: gaussian}]"}
    # until it writes words
    steps = {"training.steps": STEPS, "checkpoint.interval": STEPS, "training.optimizer.learning_rate": 2e-2}
    run = job(folder, **learned, **steps, **{"validation.interval": 0})
    train_on(1, run)
    return run


class Told:
    """What a call of the harness left: exit codes, standard output of the first rank, and the harness' files."""

    def __init__(self, to: Path, ranks: list[dict[str, Any]]) -> None:
        self.codes = [rank["code"] for rank in ranks]
        self.texts = [rank["text"] for rank in ranks]
        (results,) = to.glob("*/results_*.json") if self.codes[0] == 0 else [None]
        self.results: dict[str, Any] = json.loads(results.read_text()) if results else {}
        self.samples = {
            task: [json.loads(line) for line in next(to.glob(f"*/samples_{task}_*.jsonl")).read_text().splitlines()]
            for task in self.results.get("results", {})
        }

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Every metric of every task, but their errors."""
        return {
            task: {name: value for name, value in of_task.items() if "," in name and "stderr" not in name}
            for task, of_task in self.results["results"].items()
        }

    def answers(self, task: str) -> list[Any]:
        """To each question, in their order."""
        return [sample["filtered_resps"] for sample in sorted(self.samples[task], key=lambda one: one["doc_id"])]


def asked(to: Path, checkpoint: Path, tasks: Path, *arguments: str, world_size: int = 1) -> Told:
    """Calls the command on ranks of this machine."""
    to.mkdir()
    command = ["harness", str(checkpoint), "--tasks", ",".join(TASKS), "--include-path", str(tasks), "--log-samples",
               "--max-length", str(MAX_LENGTH), "--to", str(to), *arguments]  # fmt: skip
    run_ranks(_ask, world_size, to, command)
    return Told(to, [json.loads((to / f"{rank}.json").read_text()) for rank in range(world_size)])


def _ask(to: Path, command: list[str]) -> None:
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    here = Environment(rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size)
    os.environ.update(here.variables)
    with redirect_stdout(StringIO()) as output:
        code = cli.main(command)
    (to / f"{rank}.json").write_text(json.dumps({"code": code, "text": output.getvalue()}))


@pytest.fixture(scope="module")
def alone(folder: Path, trained: RunConfig, tasks: Path) -> Told:
    return asked(folder / "alone", trained.folder, tasks)


def test_results_say_what_was_asked_and_how(trained: RunConfig, alone: Told) -> None:
    assert alone.codes == [0]
    assert set(alone.scores) == set(TASKS)
    config = alone.results["config"]
    assert config["model"] == "MepLM"
    assert (config["max_length"], config["truncate"], config["truncated_requests"]) == (MAX_LENGTH, False, 0)
    assert (config["run"], config["step"], config["train_length"]) == (trained.name, STEPS, 16)
    assert config["tensor_parallel"] == 1
    (text,) = alone.texts
    assert f"step_{STEPS:08}, trained at 16" in text
    assert all(f"|{task}" in text for task in TASKS)
    assert "results in" in text


def test_log_likelihoods_are_those_of_the_logits(folder: Path, trained: RunConfig, alone: Told) -> None:
    run_ranks(_expected, 1, trained, alone.samples, folder / "expected.json")
    expected = json.loads((folder / "expected.json").read_text())
    for answers, by_hand in zip(alone.answers(CHOICE), expected[CHOICE], strict=True):
        assert [float(score) for score, _ in answers] == pytest.approx([score for score, _ in by_hand], rel=ROUNDING)
        assert [str(greedy) for _, greedy in answers] == [str(greedy) for _, greedy in by_hand]
    found = [float(answer) for (answer,) in alone.answers(ROLLING)]
    assert found == pytest.approx(expected[ROLLING], rel=ROUNDING)
    assert [answer for (answer,) in alone.answers(WRITTEN)] == expected[WRITTEN]


def _expected(run: RunConfig, samples: dict[str, list[dict[str, Any]]], to: Path) -> None:
    model = ByHand(run, joined())
    ordered = {task: sorted(of_task, key=lambda one: one["doc_id"]) for task, of_task in samples.items()}
    expected = {
        CHOICE: [
            [model.score(request["arg_0"], request["arg_1"]) for request in sample["arguments"].values()]
            for sample in ordered[CHOICE]
        ],
        ROLLING: [model.rolled(sample["doc"]["long"], MAX_LENGTH) for sample in ordered[ROLLING]],
        WRITTEN: [model.written(sample["doc"]["text"], UNTIL, MAX_GEN_TOKS) for sample in ordered[WRITTEN]],
    }
    to.write_text(json.dumps(expected))


@pytest.mark.parametrize(("world_size", "tensor"), [(2, 2), (2, 1)])
def test_ranks_that_share_the_work_answer_as_one(
    world_size: int, tensor: int, trained: RunConfig, tasks: Path, alone: Told, tmp_path: Path
) -> None:
    layout = (f"parallel.tensor={tensor}", "evaluation.batch_tokens=40")
    told = asked(tmp_path / "to", trained.folder, tasks, *layout, world_size=world_size)
    assert told.codes == [0] * world_size
    assert told.texts[1:] == [""]
    config = told.results["config"]
    assert (config["tensor_parallel"], config["data_parallel"]) == (tensor, world_size // tensor)
    assert_alike(told, alone, ROUNDING)


def assert_alike(told: Told, other: Told, tolerance: float) -> None:
    """Equal texts and accuracies, log-likelihoods within a tolerance."""
    assert told.scores[CHOICE] == other.scores[CHOICE]
    assert told.scores[WRITTEN] == other.scores[WRITTEN]
    assert told.answers(WRITTEN) == other.answers(WRITTEN)
    for task in (CHOICE, ROLLING):
        pairs = list(zip(numbers(told.answers(task)), numbers(other.answers(task)), strict=True))
        assert len(pairs) >= NUM_QUESTIONS
        for found, expected in pairs:
            assert found == pytest.approx(expected, rel=tolerance)


def numbers(answers: list[Any]) -> Iterator[float]:
    """The log-likelihoods of answers as they stand in files, where numbers are texts."""
    for answer in answers:
        for part in answer:
            yield float(part[0] if isinstance(part, list) else part)


def test_options_reach_the_harness_by_its_own_names(trained: RunConfig, tasks: Path, tmp_path: Path) -> None:
    samples = json.dumps({CHOICE: [4, 1], WRITTEN: [2]})
    options = ["--tasks", f"{CHOICE},{WRITTEN}", "--samples", samples, "--predict_only", "--seed", "7",
               "--system_instruction", "the dog ", "--gen_kwargs", "max_gen_toks=3"]  # fmt: skip
    told = asked(tmp_path / "to", trained.folder, tasks, *options)
    assert told.codes == [0]
    assert {task: sorted({sample["doc_id"] for sample in of_task}) for task, of_task in told.samples.items()} == {
        CHOICE: [1, 4],
        WRITTEN: [2],
    }
    (written,) = told.samples[WRITTEN]
    request = written["arguments"]["gen_args_0"]
    assert request["arg_0"].startswith("the dog 2 ")
    assert request["arg_1"]["max_gen_toks"] == 3
    assert not {"acc,none", "exact_match,none"} & {*told.scores[CHOICE], *told.scores[WRITTEN]}
    config = told.results["config"]
    assert [config[f"{kind}_seed"] for kind in ("random", "numpy", "torch", "fewshot")] == [7] * 4


def test_ranks_draw_the_same_questions(trained: RunConfig, strange: Path, tmp_path: Path) -> None:
    options = ["--tasks", DRAWN, "--metadata", "lengths=[2,3]", "--metadata", '{"other": "any"}', "parallel.tensor=1"]
    told = asked(tmp_path / "to", trained.folder, strange, *options, world_size=2)
    assert told.codes == [0, 0]
    answers = [sample["target"] for sample in told.samples[DRAWN]]
    assert [answer.count("fox") for answer in answers] == [2, 3]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs pip install 'megatron-mep[export,harness]'")
def test_the_export_scores_as_its_checkpoint(trained: RunConfig, tasks: Path, alone: Told, tmp_path: Path) -> None:
    exported, to = tmp_path / "exported", tmp_path / "to"
    run_ranks(_export, 1, trained.folder, exported)
    file = str(Path(__file__).parent / "as_user.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path)}
    command = [sys.executable, "-P", file, str(exported), str(tasks), str(MAX_LENGTH), str(to), *TASKS]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert_alike(Told(to, [{"code": 0, "text": ""}]), alone, EXPORTED)


def _export(checkpoint: Path, to: Path) -> None:
    describe_rank()
    assert cli.main(["export", str(checkpoint), "--to", str(to)]) == 0


@pytest.mark.parametrize(
    ("world_size", "arguments", "told"),
    [
        (2, ["--max-length", "20"], "mep: --max-length = 20: would cut "),
        (1, ["--max-length", "12"], "mep: --max-length = 12: leaves no room for a context: a continuation takes 12"),
        (1, ["--include-path", "absent"], "mep: --include-path = 'absent': must be a folder of tasks"),
        (2, ["parallel.context=2"], "mep: parallel.context = 2: cannot be used here: requests have lengths of"),
        (1, ["data.folder=absent"], "mep: "),
        (2, ["--tasks", UNSAFE], f"mep: --tasks = '{UNSAFE}': runs code that the model writes, on this"),
        (2, ["--tasks", DRAWN, "--metadata", "by_process=true"], "mep: --tasks: ask other questions on other ranks"),
        (2, ["--tasks", DRAWN, "--metadata", "by_process=true", "parallel.tensor=2"], "mep: --tasks: ask other"),
        (1, ["--gen-kwargs", "max_gen_toks=few"], "cannot be read (invalid literal for int()"),
        (1, ["--gen-kwargs", "max_gen_toks=0"], f"mep: --tasks = '{WRITTEN}': leaves no room for an answer: "),
        (1, ["--apply-chat-template"], "mep: --apply-chat-template: cannot be used"),
        # all tasks of the harness' own are looked through
        pytest.param(1, ["--tasks", "toy_choise"], "mep: --tasks = 'toy_choise': is no task that lm-eval knows; did "
                     "you mean 'toy_choice'?", marks=pytest.mark.slow),
        pytest.param(1, ["--tasks", "humaneval"], "mep: --tasks = 'humaneval': runs code", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_what_the_user_can_put_right_is_told_on_every_rank_before_a_model_is_loaded(
    world_size: int,
    arguments: list[str],
    told: str,
    trained: RunConfig,
    tasks: Path,
    strange: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = strange if DRAWN in arguments or UNSAFE in arguments else tasks
    told_here = asked(tmp_path / "to", trained.folder, folder, *arguments, world_size=world_size)
    assert told_here.codes == [2] * world_size
    # the model is not loaded for it
    assert told_here.texts == [""] * world_size
    assert capfd.readouterr().err.count(told) == world_size
