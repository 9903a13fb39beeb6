"""The command line: help that needs nothing, mistakes on stderr with exit code 2, and the encodings."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from megatron_mep import cli
from megatron_mep.encodings import BUILT_IN
from megatron_mep.extrapolation import TRICKS
from megatron_mep.standard_output import READER_LEFT
from tests.support.runs import run_tree

HEAVY = ("torch", "pydantic", "pydantic_core", "yaml", "megatron", "deepspeed", "numpy", "datasets", "matplotlib")


VERBS = ("doctor", "check", "plan", "prepare", "train", "launch", "status", "checkpoint", "evaluate", "generate",
         "probe", "harness", "analyze", "report", "export", "study", "encodings", "tricks")  # fmt: skip


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


def file_of(folder: Path, tree: object) -> str:
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(file)


def test_help_imports_no_library() -> None:
    done = python("-X", "importtime", "-m", "megatron_mep", "--help")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert "argparse" in imported, "otherwise this shows nothing"
    assert not imported.intersection(HEAVY)
    for verb in VERBS:
        assert verb in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([verb, "--help"])
    assert left.value.code == 0
    assert f"usage: mep {verb}" in capsys.readouterr().out


def test_a_wrong_run_file_is_told_on_stderr_with_exit_code_2(tmp_path: Path) -> None:
    tree = run_tree(model={"num_layer": 2, "encoding": {"name": "alibbi"}}, parallel={"tensor": 3})
    done = python("-m", "megatron_mep", "check", file_of(tmp_path, tree), "training.stepz=3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    told = done.stderr.splitlines()
    assert all(line.startswith("mep: ") for line in told)
    for key in ("model.num_layer = 2", "model.encoding.name = 'alibbi'", "training.stepz = 3", "parallel.tensor = 3"):
        assert any(line.startswith(f"mep: {key}: ") for line in told), key


def test_ranks_but_the_first_say_who_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    assert cli.main(["check", str(tmp_path / "absent.yaml")]) == 2
    assert capsys.readouterr().err.startswith("[rank 3] mep: ")


@pytest.mark.parametrize("arguments", [[], ["tarin"], ["check"], ["report", "results.jsonl"]])
def test_a_wrong_command_ends_with_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2


def test_encodings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["encodings"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == sorted(kind.model_fields["name"].default for kind in BUILT_IN)


def test_an_encoding_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["encodings", "mep"]) == 0
    told = capsys.readouterr().out
    assert "arXiv:2403.17698" in told
    assert "kernels: [{kernel: exponential}, {kernel: gaussian}]" in told


def test_tricks_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tricks"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == [kind.model_fields["name"].default for kind in TRICKS]
    assert cli.main(["tricks", "yarn"]) == 0
    told = capsys.readouterr().out
    assert "arXiv:2309.00071" in told
    assert "factor: required" in told


def test_an_unknown_trick_is_told_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tricks", "yarnn"]) == 2
    assert capsys.readouterr().err == "mep: NAME = 'yarnn': is not a known trick; did you mean 'yarn'?\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--matrix"], "mep: NAME: is missing; say which encoding, for example mep\n"),
        (["alibi", "--heads", "4"], "mep: --heads = 4: is of what --matrix and --plot show; add one of them, or leave"),
        (["alibi", "--matrix", "--length", "200000"], "mep: --matrix: would compute 320,000,000,000 numbers"),
        (["alibi", "--plot", "x.png", "--length", "1" + "0" * 12], "mep: --plot: would compute"),
        (["alibi", "--plot", "absent/x.png"], "mep: --plot = 'absent/x.png': must be a file that can be written (No "),
        (["alibi", "--plot", "."], "mep: --plot = '.': must end in .png or .svg; try alibi.png\n"),
        (["sinusoidal", "--matrix"], "mep: NAME = 'sinusoidal': has nothing to show: it acts on embeddings, not on "),
        (["nope", "--matrix"], "mep: NAME = 'nope': has nothing to show: it does nothing to scores; leave out"),
        (["fox", "--matrix"], "mep: NAME = 'fox': has nothing to show: what it does depends on what tokens say; "),
    ],
)
def test_what_cannot_be_shown_is_told_with_a_remedy(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["encodings", *arguments]) == 2
    assert capsys.readouterr().err.startswith(told)


@pytest.mark.parametrize("number", ["0", "-3", "1.5", "many"])
def test_a_number_of_heads_is_at_least_one(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["encodings", "alibi", "--matrix", f"--heads={number}"])
    assert left.value.code == 2
    assert f"argument --heads: must be a whole number of at least 1, not '{number}'" in capsys.readouterr().err


@pytest.mark.parametrize("length", ["8", "300"])
def test_a_reader_may_leave_before_the_end(length: str) -> None:
    """Both where the pipe breaks while text is printed and where it does as the last of it is."""
    command = [sys.executable, "-m", "megatron_mep", "encodings", "alibi", "--matrix", "--length", length]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == READER_LEFT


def test_an_unknown_encoding_is_told_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["encodings", "alibbi"]) == 2
    assert capsys.readouterr().err == "mep: NAME = 'alibbi': is not a known encoding; did you mean 'alibi'?\n"
