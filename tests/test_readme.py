"""The README keeps what it says: its commands, its example and its generated table."""

import re
from pathlib import Path

import pytest
import torch

from megatron_mep import cli
from megatron_mep.catalogue import markdown
from megatron_mep.extrapolation import extrapolated
from megatron_mep.extrapolation.catalogue import markdown as tricks_markdown
from megatron_mep.run import load_run, overridden, run_of
from tests.support.runs import run_tree

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """The one fenced block in a language that contains a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return found


def commands() -> list[str]:
    """Every command line of the README that calls `mep`, with or without a launcher."""
    lines = [line for text in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL) for line in text.splitlines()]
    calls = [re.sub(r"^.*?(?:--module megatron_mep|-m megatron_mep|^mep) ", "mep ", line) for line in lines]
    return [call.split("#")[0].rstrip("' ") for call in calls if call.startswith("mep ")]


@pytest.mark.parametrize("command", commands())
def test_a_command_is_one_that_the_parser_knows(command):
    options = cli.parsed(command.split()[1:])
    assert callable(options.verb)


def test_there_are_commands_of_every_kind():
    verbs = {"prepare", "train", "evaluate", "report", "launch", "status"}
    assert {command.split()[1] for command in commands()} == verbs


def test_the_run_file_is_a_whole_run(tmp_path):
    file = tmp_path / "my_run.yaml"
    file.write_text(block("yaml", "my_run"), encoding="utf-8")
    assert load_run(file, ["parallel.tensor=2"]).model.encoding.name == "mep"


def test_the_own_encoding_works_as_it_stands(tmp_path, monkeypatch):
    example = block("python", "class Cauchy")
    assert len(example[example.index("class") :].splitlines()) <= 15
    (tmp_path / "mine.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    encoding = run_of(run_tree(model={"encoding": {"name": "mine:Cauchy"}})).model.encoding
    weights = {name: weight.value for name, weight in encoding.weights(8, torch.Generator()).items()}
    bias = encoding.of_distance(torch.tensor([0.0, 4.0]), **weights)
    assert bias[:, 0].tolist() == [0.0] * 8
    assert bias[1, 1].item() == pytest.approx(-torch.log(torch.tensor(2.0)).item())


def test_the_table_of_encodings_is_the_generated_one():
    assert markdown() in README


def test_the_table_of_tricks_is_the_generated_one():
    assert tricks_markdown() in README


def test_the_tricks_of_the_example_can_be_put_on_rope():
    (override,) = re.findall(r"^mep evaluate .* '(extrapolation=.*)'$", README, flags=re.MULTILINE)
    run = overridden(run_of(run_tree(model={"encoding": {"name": "rope"}})), [override])
    assert extrapolated(run.model.encoding, run.extrapolation, 8).name == "rope + yarn + log_n"


def test_the_files_that_it_links_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_first_lines_are_the_two_scripts():
    first = README.index("```bash")
    assert README[first:].splitlines()[1].startswith("bash launch/quickstart.sh")
    assert README[first:].splitlines()[2].startswith("bash tests/run.sh")
