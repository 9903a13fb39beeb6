"""Length tricks on the checkpoint of a tiny run with RoPE: evaluated, reported and generated from."""

import json
from pathlib import Path

import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.evaluate import evaluate
from megatron_mep.evaluation.rows import ResultRow
from megatron_mep.reporting.report import write_report
from megatron_mep.run import RunConfig
from tests.data.toy import corpus
from tests.end_to_end.job import evaluate_on, job, train_on
from tests.end_to_end.test_generate import generated

YARN = "extrapolation=[{name: yarn, factor: 4}]"
BOTH = "extrapolation=[{name: yarn, factor: 4}, {name: log_n}]"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("tricks")
    corpus(folder)
    run = job(folder, **{"model.encoding.name": "rope", "model.encoding.base": 100})
    train_on(1, run)
    return run


@pytest.fixture(scope="module")
def rows(trained: RunConfig) -> dict[str, list[ResultRow]]:
    """Of one results file, by the tricks that acted."""
    to = trained.folder / "evaluation" / "lengths.jsonl"
    for overrides in ((), (YARN,), (BOTH,), ("extrapolation=[{name: yarn, factor: 8}]",)):
        found = evaluate_on(1, trained.folder, to, overrides)
    by_tricks: dict[str, list[ResultRow]] = {}
    for row in found:
        told = " ".join(f"{trick['name']}{trick.get('factor', '')}" for trick in row.extrapolation)
        by_tricks.setdefault(told, []).append(row)
    return by_tricks


def test_rows_say_which_tricks_acted_with_all_their_options(rows: dict[str, list[ResultRow]]) -> None:
    assert set(rows) == {"", "yarn4.0", "yarn4.0 log_n", "yarn8.0"}
    (yarn,) = rows["yarn4.0"][0].extrapolation
    assert yarn == {
        "name": "yarn",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "ramp": "pairs",
        "temperature": 0.1,
    }
    assert {row.encoding for each in rows.values() for row in each} == {"rope"}


def test_tricks_change_what_is_measured_of_the_same_tokens(rows: dict[str, list[ResultRow]]) -> None:
    def nll(told: str, length: int) -> float | None:
        (row,) = (row for row in rows[told] if (row.protocol, row.length, row.context) == ("blocks", length, "full"))
        assert row.scored_hash == rows[""][0].scored_hash
        return row.nll

    assert len({nll(told, 64) for told in rows}) == 4
    assert nll("yarn4.0", 16) == nll("yarn4.0 log_n", 16), "up to the training length log n is 1"


def test_a_report_has_a_curve_for_each_and_labels_it(
    trained: RunConfig, rows: dict[str, list[ResultRow]], tmp_path: Path
) -> None:
    assert rows
    write_report([trained.folder], tmp_path, "mep report")
    table = (tmp_path / "table.txt").read_text()
    name = trained.name
    for label in (name, f"{name} + yarn factor 4", f"{name} + yarn factor 4 + log_n", f"{name} + yarn factor 8"):
        assert f"\n{label}  " in table, label
        assert label in (tmp_path / "figures" / "length_curves.svg").read_text()
    page = (tmp_path / "index.html").read_text()
    assert "+ yarn" in page
    assert "beta_fast" in page
    assert '"[{""name"": ""yarn""' in (tmp_path / "table.csv").read_text()


def test_the_line_at_start_up_names_encoding_and_tricks(trained: RunConfig, tmp_path: Path) -> None:
    told = generated(tmp_path, trained.folder, "--prompt", "a lazy dog " * 8, "generation.temperature=0", BOTH)
    assert told.codes == [0]
    assert "layers 1-2: rope + yarn + log_n, causal mask" in told.errors[0]
    (row,) = told.rows
    assert [trick["name"] for trick in row.extrapolation] == ["yarn", "log_n"]
    assert json.loads(row.model_dump_json())["extrapolation"][0]["factor"] == 4
    plain = generated(tmp_path / "plain", trained.folder, "--prompt", "a lazy dog " * 8, "generation.temperature=0")
    assert plain.rows[0].extrapolation == ()


def test_a_trick_that_cannot_act_is_refused_before_anything_is_loaded(trained: RunConfig) -> None:
    told = r"extrapolation\[0\].name = 'bias_clamp': needs a bias .*, not rope; leave it out; on rope these act: base, "
    with pytest.raises(ConfigError, match=told):
        evaluate(trained.folder, ["extrapolation=[{name: bias_clamp, bound: -8}]"])
