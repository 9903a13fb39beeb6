import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatron_mep.training.metrics import MetricsWriter

TOKENS_PER_STEP = 1000
LINES = [f'{{"step": {step}, "consumed_tokens": {step * TOKENS_PER_STEP}, "loss": {step}.5}}' for step in range(1, 7)]


def write(folder: Path, steps: range, resumed_step: int = 0, tensorboard: bool = False, scale: float = 1.0) -> None:
    writer = MetricsWriter(folder, resumed_step, tensorboard)
    for step in steps:
        writer.write(step, step * TOKENS_PER_STEP, {"loss": scale / step}, {"layer_01/slope_0/min": scale * step})
    writer.close()


def records(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def scalars(folder: Path, axis: str, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard" / axis)).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_records_are_written_as_they_come(tmp_path: Path):
    writer = MetricsWriter(tmp_path / "new", 0, tensorboard=False)
    writer.write(10, 640, {"loss": 5.5, "grad_norm": 1.0}, {"layer_01/slope_0/min": 0.5})
    # a reader need not wait until the run ends
    assert records(tmp_path / "new") == [{"step": 10, "consumed_tokens": 640, "loss": 5.5, "grad_norm": 1.0}]
    writer.close()
    assert not (tmp_path / "new" / "tensorboard").exists()


@pytest.mark.parametrize(
    "text",
    ["\n".join(LINES[:5]) + "\n", "\n".join(LINES[:5]) + '\n{"step": 6, "cons', "\n".join(LINES[:4])],
    ids=["later steps", "half a line", "no end of line"],
)
def test_a_restart_continues_after_the_resumed_step(tmp_path: Path, text: str):
    (tmp_path / "metrics.jsonl").write_text(text)
    write(tmp_path, range(5, 6), resumed_step=4)
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3, 4, 5]
    assert [record["loss"] for record in records(tmp_path)] == [1.5, 2.5, 3.5, 4.5, 0.2]


def test_a_restart_from_nothing_begins_anew(tmp_path: Path):
    write(tmp_path, range(1, 4))
    write(tmp_path, range(1, 3), scale=2.0)
    assert [record["loss"] for record in records(tmp_path)] == [2.0, 1.0]


def test_tensorboard_shows_steps_and_tokens_across_restarts(tmp_path: Path):
    write(tmp_path, range(1, 5), tensorboard=True)
    write(tmp_path, range(3, 6), resumed_step=2, tensorboard=True, scale=2.0)
    expected = [(1, 1.0), (2, 0.5), (3, 2 / 3), (4, 0.5), (5, 0.4)]
    for axis, name, unit in (("steps", "by step/loss", 1), ("tokens", "by tokens/loss", TOKENS_PER_STEP)):
        found = scalars(tmp_path, axis, name)
        assert [place for place, _ in found] == [step * unit for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([loss for _, loss in expected])
    slopes = scalars(tmp_path, "steps", "encoding/layer_01/slope_0/min")
    assert [value for _, value in slopes] == [1.0, 2.0, 6.0, 8.0, 10.0]


def test_losses_by_position_are_lines_of_tensorboard_in_the_order_of_positions(tmp_path: Path):
    writer = MetricsWriter(tmp_path, 0, tensorboard=True)
    writer.write_by_position(5, (1, 2, 4, 12), (4.0, 3.0, 2.0, None))
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard" / "steps")).Reload()
    tags = [f"validation loss by position/{positions}" for positions in ("01", "02", "03-04", "05-12")]
    assert sorted(events.Tags()["scalars"]) == tags
    assert scalars(tmp_path, "steps", tags[2]) == [(5, 2.0)]
    assert "custom_scalars__config__" in events.Tags()["tensors"]
    MetricsWriter(tmp_path, 5, tensorboard=False).write_by_position(6, (1,), (4.0,))


def test_what_is_not_finite_is_null(tmp_path: Path):
    writer = MetricsWriter(tmp_path, 0, tensorboard=True)
    writer.write(1, 64, {"loss": float("nan"), "skipped_steps": 1}, {})
    writer.close()
    assert records(tmp_path) == [{"step": 1, "consumed_tokens": 64, "loss": None, "skipped_steps": 1}]
    ((step, value),) = scalars(tmp_path, "steps", "by step/loss")
    assert (step, value != value) == (1, True)
    write(tmp_path, range(2, 3), resumed_step=1)
    assert [record["loss"] for record in records(tmp_path)] == [None, 0.5]
