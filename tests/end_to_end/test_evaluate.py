"""A checkpoint is measured alike at every layout, and as it was while it trained."""

import pytest

from megatron_mep.config.errors import CheckpointError, ConfigError, DataError
from megatron_mep.evaluate import evaluate
from megatron_mep.evaluation.rows import ResultRow, read_rows
from megatron_mep.reporting.report import write_report
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import evaluate_on, job, train_on


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> RunConfig:
    folder = tmp_path_factory.mktemp("evaluate")
    corpus(folder)
    run = job(folder)
    train_on(1, run)
    return run


@pytest.fixture(scope="module")
def alone(trained) -> list[ResultRow]:
    return evaluate_on(1, trained.folder, trained.folder / "evaluation" / "alone.jsonl")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("parallel.tensor=2",),
        ("parallel.tensor=2", "parallel.sequence=true"),
        ("parallel.context=2",),
        ("parallel.context=2", "parallel.context_exchange=ring"),
        ("parallel.pipeline=2",),
    ],
    ids=["data", "tensor", "sequence", "context", "ring", "pipeline"],
)
def test_two_ranks_give_the_rows_of_one(trained, alone, overrides, tmp_path):
    rows = evaluate_on(2, trained.folder, tmp_path / "rows.jsonl", overrides)
    assert len(rows) == len(alone) == 5
    for row, expected in zip(rows, alone, strict=True):
        assert row.nll == pytest.approx(expected.nll, rel=1e-5)
        assert row.bits_per_byte == pytest.approx(expected.bits_per_byte, rel=1e-5)
        assert (row.length, row.context, row.scored_hash) == (expected.length, expected.context, expected.scored_hash)


def test_rows_that_are_there_are_not_measured_again(trained, tmp_path):
    rows = tmp_path / "rows.jsonl"
    first = evaluate_on(1, trained.folder, rows, ("evaluation.lengths=[16]",))
    # a kill in the midst of a line
    rows.write_bytes(rows.read_bytes() + rows.read_bytes()[:90])
    with pytest.raises(DataError):
        evaluate_on(2, trained.folder, rows, ("parallel.context=2",))
    lines = rows.read_text().splitlines()
    longer = [ResultRow.model_validate_json(line) for line in lines[len(first) + 1 :]]
    assert [(row.protocol, row.length, row.context) for row in longer] == [
        ("blocks", 64, "full"), ("blocks", 64, "cut"), ("last-k", 16, "full"), ("last-k", 64, "full")
    ]  # fmt: skip


def test_lengths_that_do_not_divide_into_two_chunks_a_rank_are_refused(trained):
    with pytest.raises(ConfigError) as caught:
        evaluate(trained.folder, ["parallel.context=16"])
    told = {mistake.key: mistake for mistake in caught.value.mistakes}
    assert told["training.seq_length"].remedy == "try 32"


def test_every_length_scores_the_same_tokens(alone):
    for protocol in ("blocks", "last-k"):
        rows = [row for row in alone if row.protocol == protocol]
        assert {row.length for row in rows} == {16, 64}
        assert len({row.scored_hash for row in rows}) == 1


def test_validation_in_the_run_is_the_evaluation_of_its_checkpoint(trained, alone):
    validated = read_rows(trained.folder / "validation.jsonl")[-1]
    evaluated = next(row for row in alone if (row.protocol, row.length, row.context) == ("blocks", 16, "full"))
    assert (validated.step, validated.scored_hash) == (evaluated.step, evaluated.scored_hash)
    assert validated.nll == pytest.approx(evaluated.nll, rel=1e-6)


def test_text_cut_by_another_tokenizer_is_refused(trained, tmp_path):
    folder, _ = corpus(tmp_path, num_documents=90)
    with pytest.raises(CheckpointError) as caught:
        evaluate(trained.folder, [f"data.folder={folder}"])
    assert caught.value.mistakes[0].key == "data.folder"


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        evaluate(tmp_path)


def test_the_report_of_a_run_has_its_curves_and_settings(trained, alone, tmp_path):
    write_report([trained.folder], tmp_path, "mep report")
    page = (tmp_path / "index.html").read_text()
    assert trained.name in page
    assert "num_layers: 2" in page
    assert f"{alone[0].perplexity:.1f}" in (tmp_path / "table.txt").read_text()
