from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_mep.checkpoint.progress import Progress
from megatron_mep.checkpoint.resume import check_continues, check_corpus, check_tokenizer
from megatron_mep.config.errors import CheckpointError, Mistake
from megatron_mep.run import RunConfig, overridden, run_of
from tests.support.runs import run_tree


@pytest.fixture
def run() -> RunConfig:
    return run_of(run_tree(training={"schedule": {"name": "cosine", "warmup_steps": 2}}))


@pytest.fixture
def written(run: RunConfig, tmp_path: Path) -> Path:
    file = tmp_path / "step_00000004" / "run.yaml"
    file.parent.mkdir()
    file.write_text(run.yaml())
    return file


def continues(written: Path, run: RunConfig, *overrides: str) -> list[str]:
    return check_continues(written, overridden(run, overrides).model_dump(mode="json"), resolved)


def resolved(tree: Any) -> dict[str, Any]:
    return run_of(tree).model_dump(mode="json")


def mistakes(act: Callable[[], object]) -> list[Mistake]:
    with pytest.raises(CheckpointError) as caught:
        act()
    return list(caught.value.mistakes)


def test_the_same_run_continues(written: Path, run: RunConfig):
    assert continues(written, run) == []


def test_a_run_written_before_a_key_was_known_continues(written: Path, run: RunConfig):
    tree = yaml.safe_load(written.read_text())
    del tree["generation"], tree["model"]["qk_norm"], tree["model"]["encoding"]["order"]
    written.write_text(yaml.safe_dump(tree))
    assert continues(written, run) == []
    assert [mistake.key for mistake in mistakes(lambda: continues(written, run, "model.qk_norm=true"))] == [
        "model.qk_norm"
    ]


@pytest.mark.parametrize(
    "override",
    [
        "name=another",
        "runs=elsewhere",
        "data.folder=elsewhere",
        "data.index_folder=elsewhere",
        "data.num_threads=3",
        "parallel.tensor=2",
        "training.micro_batch_size=2",
        "training.zero_stage=3",
        "training.recompute=full",
        "model.attention_backend=reference",
        "model.attention_epsilon=1e-6",
        "generation.seed=7",
        "checkpoint.interval=7",
        "validation.interval=7",
        "evaluation.batch_tokens=128",
        "logging.interval=7",
    ],
)
def test_layout_places_and_what_is_observed_may_differ(written: Path, run: RunConfig, override: str):
    assert continues(written, run, override) == []


def test_a_longer_run_is_told(written: Path, run: RunConfig):
    overrides = ("training.steps=9", "training.schedule.warmup_steps=3", "parallel.tensor=2")
    assert continues(written, run, *overrides) == [
        "training.steps is 9 from here on, it was 4",
        "training.schedule.warmup_steps is 3 from here on, it was 2",
    ]


def test_what_becomes_of_spikes_may_change_and_is_told(written: Path, run: RunConfig):
    told = continues(written, run, "training.spike.window=8", "training.non_finite.max_consecutive=20")
    assert told == [
        "training.non_finite.max_consecutive is 20 from here on, it was 10",
        "training.spike.window is 8 from here on, it was 128",
    ]


def test_another_schedule_is_told(written: Path, run: RunConfig):
    told = continues(written, run, "training.schedule.name=constant")
    assert told == [
        "training.schedule.name is 'constant' from here on, it was 'cosine'",
        "training.schedule.warmup_steps is 0 from here on, it was 2",
        "training.schedule.min_learning_rate is None from here on, it was 0.0",
    ]


@pytest.mark.parametrize(
    ("override", "before"),
    [
        ("seed=7", 1234),
        ("model.num_layers=2", 1),
        ("model.hidden_dropout=0.5", 0.0),
        ("model.encoding.mean=geometric", "arithmetic"),
        ("training.seq_length=16", 8),
        ("training.global_batch_size=4", 2),
        ("training.precision=bf16", "fp32"),
        ("training.optimizer.learning_rate=0.5", 0.001),
        ("training.optimizer.betas=[0.5, 0.5]", [0.9, 0.95]),
        ("data.tokenizer.vocab_size=500", 4096),
    ],
)
def test_what_would_make_another_run_is_refused(written: Path, run: RunConfig, override: str, before: Any):
    key, _, value = override.partition("=")
    (mistake,) = mistakes(lambda: continues(written, run, override, "training.steps=9"))
    assert (mistake.key, mistake.value) == (key, yaml.safe_load(value))
    assert mistake.rule == f"was {before!r} when {written.parent} was written"


def test_all_that_differs_is_refused_at_once(written: Path, run: RunConfig):
    found = mistakes(lambda: continues(written, run, "seed=7", "model.encoding.name=alibi"))
    assert [mistake.key for mistake in found] == [
        "seed",
        *(f"model.encoding.{key}" for key in ("name", "kernels", "mean")),
    ]


@pytest.mark.parametrize("text", [None, "training: [", "\x00"])
def test_a_run_file_that_cannot_be_read_is_refused(written: Path, run: RunConfig, text: str | None):
    written.unlink()
    if text is not None:
        written.write_text(text)
    (mistake,) = mistakes(lambda: continues(written, run))
    assert mistake.key == str(written)
    assert mistake.rule.startswith("cannot be read")


REACHED = Progress(
    step=1,
    consumed_samples=2,
    consumed_tokens=16,
    tokenizer_sha256="t1",
    corpus_fingerprint="c1",
    tensor_size=1,
    data_size=1,
)


def test_samples_are_counted_in_one_corpus(tmp_path: Path):
    check_corpus(REACHED, "c1", tmp_path)
    (mistake,) = mistakes(lambda: check_corpus(REACHED, "c2", tmp_path))
    assert (mistake.key, mistake.value) == ("data.folder", "c2")


def test_text_is_cut_by_one_tokenizer(tmp_path: Path):
    check_tokenizer(REACHED, "t1", tmp_path)
    (mistake,) = mistakes(lambda: check_tokenizer(REACHED, "t2", tmp_path))
    assert mistake.key == "data.folder"
