"""A run may start from the weights of another; `resume` is what a run does by itself, with its own checkpoint alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_mep import cli
from megatron_mep.checkpoint.contents import contents_of
from megatron_mep.checkpoint.files import find, steps_in
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.preflight import preflight
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import job, train_on
from tests.end_to_end.test_resume import records

BASE_STEPS = 3
QUIET = {"model.hidden_dropout": 0.0, "logging.tensorboard": "false"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus, and below `runs` a run that has learned something."""
    place = tmp_path_factory.mktemp("init_from")
    corpus(place)
    steps = {"training.steps": BASE_STEPS, "training.schedule.name": "constant"}
    train_on(1, job(place, name="base", **QUIET, **steps))
    return place


def from_base(folder: Path, name: str, **changes: Any) -> RunConfig:
    return job(folder, **{"name": name, "init_from": folder / "runs" / "base", "training.steps": 2, **QUIET, **changes})


def test_weights_are_taken_at_any_layout_and_all_else_starts_anew(folder: Path, capfd: pytest.CaptureFixture[str]):
    alone = from_base(folder, "alone")
    divided = from_base(folder, "divided", **{"parallel.tensor": 2, "training.zero_stage": 3})
    train_on(1, alone)
    told = capfd.readouterr().out
    train_on(2, divided)
    step = find(folder / "runs" / "base")
    assert f"weights from {step} (base, step {BASE_STEPS}, " in told
    assert "optimizer, schedule and data start anew" in told
    base = records(job(folder, name="base"))
    first, _ = records(alone)
    assert (first["step"], first["consumed_tokens"]) == (1, base[0]["consumed_tokens"])
    # on the batch that the base began with, it is better than the base was then
    assert first["loss"] < base[0]["loss"] - 0.05
    for here, there in zip(records(alone), records(divided), strict=True):
        assert there["loss"] == pytest.approx(here["loss"], rel=1e-5)

    # with a checkpoint of its own a run goes on from that
    train_on(1, from_base(folder, "alone", **{"training.steps": 3}))
    assert f"init_from={alone.init_from} is not read: the run goes on from its own" in capfd.readouterr().out
    assert records(alone)[0] == first
    assert steps_in(alone.folder / "checkpoints") == [2, 3]


def mistakes(run: RunConfig) -> list[Mistake]:
    with pytest.raises(ConfigError) as caught:
        preflight(run, 1)
    return list(caught.value.mistakes)


def test_what_cannot_be_taken_is_told_before_anything_starts(folder: Path, tmp_path: Path):
    (missing,) = mistakes(from_base(folder, "none", init_from=tmp_path / "none"))
    assert missing.key == "init_from"
    assert missing.rule == f"{tmp_path / 'none'} holds no checkpoint"

    differing = mistakes(from_base(folder, "wider", **{"model.hidden_size": 32, "model.num_attention_heads": 2}))
    told = {mistake.key: (mistake.value, mistake.remedy) for mistake in differing}
    assert told == {
        "model.hidden_size": (32, "set it to 16"),
        "model.num_attention_heads": (2, "set it to 4"),
        "model.num_query_groups": (2, "set it to 4"),
        "model.ffn_hidden_size": (128, "set it to 64"),
    }

    corpus(tmp_path, num_documents=100)
    other = from_base(folder, "other", **{"data.folder": tmp_path / "corpus"})
    (mistake,) = mistakes(other)
    assert mistake.key == "data.folder"
    assert "another tokenizer" in mistake.rule


def test_a_checkpoint_says_what_it_holds(folder: Path, capsys: pytest.CaptureFixture[str]):
    base = str(folder / "runs" / "base")
    assert cli.main(["checkpoint", "inspect", base]) == 0
    told = capsys.readouterr().out
    for part in ("step         3 of 3", "encoding     mep (", "layout       tensor 1 x", "fp32", "torch 2.", "learned"):
        assert part in told
    assert "decoder.layers.mlp.linear_fc1.weight" in told

    assert cli.main(["checkpoint", "inspect", base, "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert stated["progress"]["step"] == BASE_STEPS
    shapes = {tensor["name"]: (tensor["shape"], tensor["dtype"], tensor["learned"]) for tensor in stated["weights"]}
    assert shapes["decoder.final_layernorm.weight"] == ([16], "float32", True)
    constants = [name for name, (_, _, learned) in shapes.items() if not learned]
    assert constants
    assert all("encoding_weights" in name for name in constants)
    assert stated["num_learned"] == contents_of(find(folder / "runs" / "base")).num_learned


def test_a_checkpoint_is_verified_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    base = folder / "runs" / "base"
    assert cli.main(["checkpoint", "verify", str(base)]) == 0
    assert capsys.readouterr().out.startswith(f"{find(base)} is whole: ")
    file = next(find(base).glob("*.distcp"))
    content = file.read_bytes()
    try:
        file.write_bytes(content[:-1])
        assert cli.main(["checkpoint", "verify", str(base)]) == 2
        assert capsys.readouterr().err.startswith(f"mep: {file}: is damaged: ")
    finally:
        file.write_bytes(content)
