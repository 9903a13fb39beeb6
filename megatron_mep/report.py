"""A report, composed: rows are read, the encodings of their runs asked for their shapes, and the page is written."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import yaml

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.base import DistanceBias, LayerSizes, PositionBias, ScoreMix
from megatron_mep.encodings.effect import effect, meaning
from megatron_mep.model.config import ModelConfig
from megatron_mep.reporting.report import write_sources
from megatron_mep.reporting.shapes import Shape
from megatron_mep.reporting.sources import read_sources
from megatron_mep.run import RunConfig, run_of

MAX_LENGTH = 4096
"""Tokens up to which shapes are drawn."""
NUM_DISTANCES = 96
"""Of a shape, evenly spread on a logarithmic axis."""
ADDED = (DistanceBias, PositionBias, ScoreMix)
"""What acts on weights by the exponential of what it adds to scores."""


def report(results: Sequence[Path], to: Path, command: str) -> list[Path]:
    """Writes the report of results files, run folders and folders of studies; its files."""
    sources = read_sources(results)
    longest = max(record.row.length for record in sources.records)
    return write_sources(sources, to, command, shapes_of(sources.settings, min(longest, MAX_LENGTH)))


def shapes_of(settings: Mapping[str, str], length: int) -> list[Shape]:
    """The shapes of the encodings of runs at a length, by their resolved run files; alike ones once.

    Left out are encodings whose effect depends on what tokens say, and runs whose file this version does not read.
    """
    models: dict[str, ModelConfig] = {}
    runs: dict[str, list[str]] = {}
    for name, text in settings.items():
        run = _run_of(text)
        if run is not None and meaning(run.model.encoding) is not None:
            model = run.model
            alike = f"{model.encoding.model_dump_json()} {model.num_attention_heads} {model.head_size}"
            models.setdefault(alike, model)
            runs.setdefault(alike, []).append(name)
    return [_shape(model, tuple(runs[alike]), length) for alike, model in models.items()]


def _run_of(text: str) -> RunConfig | None:
    try:
        return run_of(yaml.safe_load(text))
    except ConfigError:
        return None


def _shape(model: ModelConfig, runs: tuple[str, ...], length: int) -> Shape:
    # what a segment is is no matter where all tokens are alike
    encoding = model.encoding.reading([b"a", b".\n"])
    sizes = LayerSizes(model.num_attention_heads, model.hidden_size, model.head_size)
    declared = encoding.layer_weights(sizes, torch.Generator().manual_seed(0))
    weights = {name: weight.value for name, weight in declared.items()}
    last = torch.tensor([length - 1])
    by_distance = effect(encoding, weights, last, sizes.num_heads, sizes.head_size)[:, 0].flip(1)
    added = isinstance(encoding, ADDED)
    if added:
        by_distance = (by_distance - by_distance[:, :1]).exp()
    if torch.equal(by_distance, by_distance[:1].expand_as(by_distance)):
        by_distance = by_distance[:1]
    distances = sorted({round(place) - 1 for place in np.geomspace(1, length, NUM_DISTANCES)})
    return Shape(
        title=encoding.name,
        meaning="factor on the weight" if added else "score of ones",
        runs=runs,
        learned=any(weight.learned for weight in declared.values()),
        distances=distances,
        heads=by_distance[:, distances].tolist(),
    )
