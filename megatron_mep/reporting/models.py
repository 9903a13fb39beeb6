"""Which rows are one model's, and what a model is called beside others."""

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from megatron_mep.reporting.rows import ModelRow
from megatron_mep.reporting.tricks import with_tricks

ModelKey = tuple[Hashable, ...]


def model_of(row: ModelRow) -> ModelKey:
    """What makes two rows one model's: its training and the tricks put on it, and last its step."""
    options, tricks = (json.dumps(stated, sort_keys=True) for stated in (row.encoding_options, row.extrapolation))
    return row.run, row.encoding, options, row.train_length, row.seed, tricks, row.step


def but_for_seed(row: ModelRow) -> ModelKey:
    """What models share that differ in their seed, and so in the names of their runs."""
    _, encoding, options, train_length, _, tricks, step = model_of(row)
    return encoding, options, train_length, tricks, step, row.num_parameters


def labels_of(rows: Iterable[ModelRow]) -> dict[ModelKey, str]:
    """What the models of some rows are called, in the order of first appearance."""
    models: dict[ModelKey, ModelRow] = {}
    for row in rows:
        models.setdefault(model_of(row), row)
    return dict(zip(models, _labels(list(models.values())), strict=True))


def _labels(models: Sequence[ModelRow]) -> list[str]:
    """Runs and tricks; where several models share a run, with what tells them apart: step, seed, encoding, place."""
    labels: list[str] = []
    for model in models:
        namesakes = [other for other in models if other.run == model.run]
        parts = {"step": model.step, "seed": model.seed, "encoding": model.encoding}
        apart = [f"{name} {value}" for name, value in parts.items() if {getattr(n, name) for n in namesakes} != {value}]
        labels.append(", ".join([with_tricks(model, namesakes), *apart]))
    taken = Counter(labels)
    return [f"{label} ({place})" if taken[label] > 1 else label for place, label in enumerate(labels, start=1)]
