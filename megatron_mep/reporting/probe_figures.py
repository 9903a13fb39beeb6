"""How well models find what was hidden in text, by length and depth, and do exercises, by length."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megatron_mep.reporting.charts import Axis, Chart, Curve, Drawable, HeatMap, Point, Style
from megatron_mep.reporting.models import labels_of, model_of
from megatron_mep.reporting.rows import ProbeRow

PERCENT = (-4.0, 104.0)


@dataclass(frozen=True)
class Task:
    """One task with the rows of every model that was asked it, the newest of each length and depth."""

    title: str
    kind: str
    rows: Mapping[str, Sequence[ProbeRow]]
    """By the model's label."""

    @property
    def lengths(self) -> list[int]:
        """Every length that a model was asked at, ascending."""
        return sorted({length for label in self.rows for length in self.lengths_of(label)})

    def lengths_of(self, label: str) -> list[int]:
        """Those that one model was asked at, ascending."""
        return sorted({row.length for row in self.rows[label]})

    @property
    def notes(self) -> tuple[str, ...]:
        """What stands against holding its numbers against each other."""
        asked: dict[tuple[int, float | None], set[str]] = {}
        for rows in self.rows.values():
            for row in rows:
                asked.setdefault((row.length, row.depth), set()).add(row.samples_hash)
        lengths = sorted({length for (length, _), hashes in asked.items() if len(hashes) > 1})
        told = f"Not all models were asked the same at {', '.join(map(str, lengths))}: prompts and answers differ."
        return (told,) if lengths else ()


def tasks_of(rows: Sequence[ProbeRow]) -> list[Task]:
    """The tasks that models were asked, in the order of first appearance."""
    labels = labels_of(rows)
    in_time = sorted(rows, key=lambda row: row.created)
    titles = _titles(in_time)
    newest: dict[str, dict[str, dict[tuple[int, float | None], ProbeRow]]] = {}
    for row in in_time:
        of_model = newest.setdefault(titles[_task(row)], {}).setdefault(labels[model_of(row)], {})
        of_model[row.length, row.depth] = row
    return [
        Task(title, _kind(models), {label: list(found.values()) for label, found in models.items()})
        for title, models in newest.items()
    ]


def probe_figures(place: int, task: Task, style: Mapping[str, Style]) -> list[Drawable]:
    """A heat map for each model where answers stand at a depth, else a chart of all by length, if there are several."""
    name = f"{task.kind}_{place}"
    if any(row.depth is not None for rows in task.rows.values() for row in rows):
        return [
            _heat_map(f"{name}_{number}", label, rows)
            for number, (label, rows) in enumerate(task.rows.items(), start=1)
        ]
    curves = [
        Curve(label, [Point(row.length, score(row), told(row)) for row in _by_length(rows)], style[label])
        for label, rows in task.rows.items()
    ]
    if len(task.lengths) < 2:
        return []
    x = Axis("length", log=True, ticks={float(length): str(length) for length in task.lengths})
    return [Chart(name, task.title, x, Axis("right answers (%)", limits=PERCENT), curves)]


def score(row: ProbeRow) -> float:
    """What was found in greedy text or, where that was not measured, what was predicted exactly; in percent."""
    return next((value for value in (row.found, row.exact) if value is not None), float("nan"))


def told(row: ProbeRow) -> str:
    """All scores of a row, in lines."""
    scores = (
        ("found in greedy text", row.found, "%"),
        ("predicted exactly", row.exact, "%"),
        ("tokens predicted", row.token_accuracy, "%"),
        ("mean rank of the right token", row.mean_rank, ""),
    )
    lines = [f"{name} {value:.4g}{unit and f' {unit}'}" for name, value, unit in scores if value is not None]
    if row.non_finite:
        lines.append(f"logits of {row.non_finite} samples are not finite")
    return "\n".join([*lines, f"{row.num_samples} samples"])


def _heat_map(name: str, label: str, rows: Sequence[ProbeRow]) -> HeatMap:
    lengths = sorted({row.length for row in rows})
    depths = sorted({row.depth for row in rows if row.depth is not None})
    at = {(row.depth, row.length): row for row in rows}
    found = [[at.get((depth, length)) for length in lengths] for depth in depths]
    return HeatMap(
        name,
        f"{label}, trained at {rows[0].train_length}",
        "length (tokens)",
        "depth",
        [str(length) for length in lengths],
        [f"{depth:.0%}" for depth in depths],
        [[None if row is None else score(row) for row in of_depth] for of_depth in found],
        [["" if row is None else told(row) for row in of_depth] for of_depth in found],
        "right (%)",
        100.0,
        written=True,
    )


def _by_length(rows: Sequence[ProbeRow]) -> list[ProbeRow]:
    return sorted(rows, key=lambda row: row.length)


def _task(row: ProbeRow) -> tuple[str, str]:
    """What two rows of one task share."""
    return row.task, json.dumps(row.task_options, sort_keys=True)


def _titles(rows: Iterable[ProbeRow]) -> dict[tuple[str, str], str]:
    """From a task to its name, with the options in which it differs from others of that name."""
    by_name: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row.task, {})[_task(row)] = row.task_options
    return {
        task: _titled(task[0], options, of_name) for of_name in by_name.values() for task, options in of_name.items()
    }


def _titled(name: str, options: Mapping[str, Any], others: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    differing = [
        f"{option} {value}" for option, value in options.items() if any(o.get(option) != value for o in others.values())
    ]
    return f"{name} ({', '.join(differing)})" if differing else name


def _kind(models: Mapping[str, Mapping[tuple[int, float | None], ProbeRow]]) -> str:
    return next(row.kind for rows in models.values() for row in rows.values())
