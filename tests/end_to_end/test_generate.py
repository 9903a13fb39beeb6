"""`mep generate` on a checkpoint of a tiny run, alone and on ranks that share its layers."""

import json
import os
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from torch import distributed

from megatron_mep import cli
from megatron_mep.data.manifest import TOKENIZER
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.generation.config import GenerationConfig
from megatron_mep.generation.rows import GenerationRow
from megatron_mep.model.decode import Decoder
from megatron_mep.parallel.environment import Environment
from megatron_mep.run import RunConfig, overridden
from tests.data.toy import corpus
from tests.end_to_end.job import job, train_on
from tests.support.distributed import run as run_ranks

PROMPT = "0 the quick brown fox été"
LONG = "a lazy dog " * 12
"""Some 100 tokens, at a training length of 16."""
NEW = 24
"""Tokens after a prompt, unless more are asked for."""
GREEDY = "generation.temperature=0"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("generate")
    corpus(folder)
    run = job(folder)
    train_on(1, run)
    return run


class Told:
    """What `mep generate` did: exit codes, what each rank wrote to standard output and error, and the rows."""

    def __init__(self, folder: Path, world_size: int) -> None:
        ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]
        self.codes = [rank["code"] for rank in ranks]
        self.writes = [rank["writes"] for rank in ranks]
        self.text = "".join(self.writes[0])
        self.errors = [rank["errors"] for rank in ranks]
        rows = folder / "rows.jsonl"
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
        self.rows = [GenerationRow.model_validate_json(line) for line in lines]


def generated(folder: Path, checkpoint: Path, *arguments: str, world_size: int = 1) -> Told:
    """Calls the command on ranks of this machine."""
    folder.mkdir(exist_ok=True)
    rows = folder / "rows.jsonl"
    command = ["generate", str(checkpoint), f"generation.max_new_tokens={NEW}", *arguments, "--to", str(rows)]
    run_ranks(_generate, world_size, folder, command)
    return Told(folder, world_size)


class Recorder(StringIO):
    """Keeps every write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def _generate(folder: Path, command: list[str]) -> None:
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    here = Environment(rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size)
    os.environ.update(here.variables)
    with redirect_stdout(Recorder()) as output, redirect_stderr(StringIO()) as errors:
        code = cli.main(command)
    told = {"code": code, "writes": output.writes, "errors": errors.getvalue()}
    (folder / f"{rank}.json").write_text(json.dumps(told))


@pytest.fixture(scope="module")
def alone(trained: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("alone")
    return generated(folder, trained.folder, "--prompt", PROMPT, "--prompt", LONG, GREEDY)


def test_a_row_says_all_that_is_needed_to_draw_it_again(trained: RunConfig, alone: Told):
    assert alone.codes == [0]
    tokenizer = Tokenizer.load(Path(trained.data.folder) / TOKENIZER)
    assert [row.prompt for row in alone.rows] == [PROMPT, LONG]
    for seed, row in enumerate(alone.rows):
        assert row.settings == GenerationConfig(temperature=0.0, max_new_tokens=NEW, seed=seed)
        assert row.prompt_tokens == len(tokenizer.encode([row.prompt])[0])
        assert row.checkpoint == str(trained.folder / "checkpoints" / "step_00000008")
        assert (row.run, row.step, row.train_length) == (trained.name, 8, 16)
        assert (row.encoding, row.encoding_options["mean"]) == ("mep", "arithmetic")
        assert row.end == "document" or len(row.tokens) == NEW
        assert row.prefill_tokens_per_s > 0


def test_the_start_says_what_the_prompts_take(alone: Told):
    (errors,) = alone.errors
    assert "step_00000008, trained at 16" in errors
    assert re.search("layers 1-2: mep, causal mask, (compiled|toeplitz) attention", errors)
    length = alone.rows[1].prompt_tokens + NEW
    # 2 layers of keys and values, 16 wide, in fp32
    gib = 2 * 2 * 16 * 4 * length / 2**30
    told = f"at most {length}, {length / 16:.1f} times the training length 16; cache {gib:.2g} GiB\n"
    assert f"--prompt: {alone.rows[1].prompt_tokens} tokens, {told}" in errors


def test_standard_output_holds_the_generated_text_alone(alone: Told):
    assert alone.text == "".join(row.text + "\n" for row in alone.rows)


def test_two_ranks_write_the_text_of_one(trained: RunConfig, alone: Told, tmp_path: Path):
    arguments = ("--prompt", PROMPT, "--prompt", LONG, GREEDY, "parallel.tensor=2")
    told = generated(tmp_path, trained.folder, *arguments, world_size=2)
    assert told.codes == [0, 0]
    assert [row.tokens for row in told.rows] == [row.tokens for row in alone.rows]
    assert {row.tensor_parallel for row in told.rows} == {2}
    assert told.text == alone.text
    assert (told.writes[1], told.errors[1]) == ([], "")


def test_a_run_with_sequence_parallelism_generates_without_it(trained: RunConfig, tmp_path: Path):
    run = overridden(trained, ["name=divided", "parallel.tensor=2", "parallel.sequence=true"])
    train_on(2, run)
    arguments = ("--prompt", PROMPT, GREEDY)
    divided = generated(tmp_path / "divided", run.folder, *arguments, world_size=2)
    whole = generated(tmp_path / "whole", run.folder, *arguments, "parallel.tensor=1")
    assert (divided.codes, whole.codes) == ([0, 0], [0])
    assert "2 tensor ranks, parallel.sequence off" in divided.errors[0]
    assert divided.rows[0].tokens == whole.rows[0].tokens


def test_a_stream_of_any_tokens_is_whole_letters(trained: RunConfig, tmp_path: Path):
    # a model this young draws bytes in any order
    wild = ("temperature=2", "top_p=1", "stop_at_end=false", "max_new_tokens=128")
    told = generated(tmp_path, trained.folder, "--prompt", PROMPT, *(f"generation.{option}" for option in wild))
    (row,) = told.rows
    assert len(told.writes[0]) > len(row.tokens) == 128
    assert "\ufffd" not in told.text
    assert "\\x" in told.text, "otherwise this shows nothing"
    tokenizer = Tokenizer.load(Path(trained.data.folder) / TOKENIZER)
    assert "\ufffd" in "".join(tokenizer.decode(row.tokens[place : place + 1]) for place in range(128))


def test_a_prompt_twice_is_continued_twice_and_each_can_be_drawn_again(trained: RunConfig, tmp_path: Path):
    file = tmp_path / "prompt.txt"
    file.write_text(f"{PROMPT}\n", encoding="utf-8")
    arguments = ("--prompt-file", str(file), "--prompt", PROMPT, "generation.seed=3")
    first = generated(tmp_path / "first", trained.folder, *arguments)
    tensor = generated(tmp_path / "tensor", trained.folder, *arguments, "parallel.tensor=2", world_size=2)
    second = generated(tmp_path / "second", trained.folder, *arguments, "generation.seed=4")
    assert [row.settings.seed for row in first.rows] == [3, 4]
    assert first.rows[0].tokens != first.rows[1].tokens == second.rows[0].tokens
    assert [row.tokens for row in tensor.rows] == [row.tokens for row in first.rows]


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_of_a_prompt_change_nothing(trained: RunConfig, alone: Told, chunk: int, tmp_path: Path):
    told = generated(tmp_path, trained.folder, "--prompt", LONG, GREEDY, f"generation.prefill_chunk={chunk}")
    assert told.rows[0].tokens == alone.rows[1].tokens


@pytest.mark.parametrize(
    ("world_size", "arguments", "told"),
    [
        (1, ["--prompt", ""], "mep: --prompt = '': must hold at least one token"),
        (1, [], "mep: --prompt: is required"),
        (2, ["--prompt-file", "absent.txt", "parallel.tensor=2"], "mep: absent.txt: cannot be read"),
        (1, ["--prompt", "a", "generation.temperature=-1"], "mep: generation.temperature = -1: must be greater than"),
        (1, ["--prompt", "a", "generation.top_p=1.5"], "mep: generation.top_p = 1.5: must be less than or equal to 1"),
        (1, ["--prompt", "a", "generation.tempreture=1"], "did you mean 'temperature'?"),
        (1, ["--prompt", "a", "data.folder=elsewhere"], "mep: data.folder = 'elsewhere': must hold tokenizer.model"),
        (2, ["--prompt", "a"], "mep: parallel.tensor = 1: must be the world size 2"),
        (2, ["--prompt", "a", "parallel.tensor=2", "parallel.sequence=true"],
         "mep: parallel.sequence = True: cannot be used here"),
        (2, ["--prompt", "a", "parallel.context=2"], "mep: parallel.context = 2: cannot be used here"),
    ],
)  # fmt: skip
def test_what_the_user_can_put_right_is_told_on_every_rank(
    trained: RunConfig, world_size: int, arguments: list[str], told: str, tmp_path: Path
):
    found = generated(tmp_path, trained.folder, *arguments, world_size=world_size)
    assert found.codes == [2] * world_size
    assert all(told in errors for errors in found.errors)
    assert found.rows == []
    assert found.text == ""


def test_a_checkpoint_that_has_diverged_is_told(trained: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Decoder, "read", lambda *_, **__: torch.tensor([[[0.5, torch.nan]]]))
    found = generated(tmp_path, trained.folder, "--prompt", "a")
    assert found.codes == [2]
    assert "step_00000008: gives logits that are not finite" in found.errors[0]
    assert found.rows == []


def test_text_cut_by_another_tokenizer_is_refused(trained: RunConfig, tmp_path: Path):
    folder, _ = corpus(tmp_path, num_documents=90)
    found = generated(tmp_path / "out", trained.folder, "--prompt", "a", f"data.folder={folder}")
    assert found.codes == [2]
    assert "mep: data.folder: was prepared with another tokenizer" in found.errors[0]
