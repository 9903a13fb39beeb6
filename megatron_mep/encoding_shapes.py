"""The shapes of the encodings of a report's runs: as trained where a checkpoint tells, else as before training."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor

from megatron_mep.checkpoint.encoding import encoding_weights
from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.config.errors import CheckpointError, ConfigError, Mistake
from megatron_mep.encodings.base import DistanceBias, LayerSizes, PositionBias, ScoreMix
from megatron_mep.encodings.effect import effect, meaning
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.stage import lender
from megatron_mep.parallel.seeds import generator_of
from megatron_mep.reporting.shapes import Shape
from megatron_mep.reporting.sources import Sources
from megatron_mep.run import RunConfig, run_of

NUM_DISTANCES = 96
"""Of a shape, evenly spread on a logarithmic axis."""
ADDED = (DistanceBias, PositionBias, ScoreMix)
"""What acts on weights by the exponential of what it adds to scores."""
COURSE = {"model", "data", "training", "init_from"}
"""The sections of a run file that say, beside the seed, what training makes of an encoding."""
REMEDY = "evaluate a checkpoint of the run, and report while it is there"

Weights = dict[str, Tensor]


def shapes_of(sources: Sources, length: int) -> list[Shape]:
    """The shapes at a length, alike ones once; of a trained encoding, those of its first, middle and last layer.

    Left out are encodings whose effect depends on what tokens say, and runs whose file this version does not read. Of
    runs that differ in their seed alone, the first is drawn whose checkpoint is there.
    """
    runs = dict(_drawable(sources.settings))
    shapes: list[Shape] = []
    reasons: dict[str, str] = {}
    for names in _alike({name: run for name, run in runs.items() if run.model.encoding.learned}, _course):
        for name in names:
            try:
                shapes += _trained(name, names, runs[name], sources.checkpoints.get(name), length)
            except CheckpointError as error:
                reasons[name] = "; ".join(f"{mistake.key} {mistake.rule}" for mistake in error.mistakes)
            else:
                break
    done = {name for shape in shapes for name in shape.runs}
    for names in _alike({name: run for name, run in runs.items() if name not in done}, _as_drawn):
        shapes.append(_untrained(names, runs[names[0]], reasons.get(names[0]), length))
    return sorted(shapes, key=lambda shape: min(map(list(runs).index, shape.runs)))


def _drawable(settings: Mapping[str, str]) -> Iterator[tuple[str, RunConfig]]:
    for name, text in settings.items():
        try:
            run = run_of(yaml.safe_load(text))
        except ConfigError:
            continue
        if meaning(run.model.encoding) is not None:
            # what a segment is is no matter where all tokens are alike
            encoding = run.model.encoding.reading([b"a", b".\n"])
            yield name, run.model_copy(update={"model": run.model.model_copy(update={"encoding": encoding})})


def _alike(runs: Mapping[str, RunConfig], key: Callable[[RunConfig], str]) -> Iterator[tuple[str, ...]]:
    """The names of runs that have one key."""
    names: dict[str, list[str]] = {}
    for name, run in runs.items():
        names.setdefault(key(run), []).append(name)
    return map(tuple, names.values())


def _course(run: RunConfig) -> str:
    return run.model_dump_json(include=COURSE)


def _as_drawn(run: RunConfig) -> str:
    model = run.model
    return f"{model.encoding.model_dump_json()} {model.num_attention_heads} {model.head_size}"


def _untrained(names: tuple[str, ...], run: RunConfig, reason: str | None, length: int) -> Shape:
    weights = _drawn_weights(run.model, torch.Generator().manual_seed(0))
    return _shape(run.model, names, length, _by_distance(run.model, weights, length), untrained=reason)


def _trained(name: str, names: tuple[str, ...], run: RunConfig, checkpoint: Path | None, length: int) -> list[Shape]:
    """The shapes of some layers of a run, which stands for those of other `names`; a `CheckpointError` says why not."""
    if checkpoint is None or not checkpoint.is_dir():
        rule = "names no checkpoint in its rows" if checkpoint is None else "is not there"
        raise CheckpointError(Mistake(str(checkpoint or name), None, rule, REMEDY))
    model, layers = run.model, _shown_layers(run.model)
    stored = encoding_weights(checkpoint, layers)
    step = read_progress(checkpoint).step
    runs = (name, *(other for other in names if other != name))
    shapes = []
    for layer in layers:
        drawn = _drawn_weights(model, generator_of(run.seed, layer))
        _refuse_others(checkpoint, stored[layer], drawn)
        by_distance = _by_distance(model, stored[layer], length)
        # what a run starts from that takes up the weights of another is not drawn by its seed
        before = None if run.init_from else _by_distance(model, drawn, length)
        where = f"layer {layer} of {model.num_layers}" if lender(model) is None else "shared by its layers"
        shapes.append(_shape(model, runs, length, by_distance, before, trained=f"{where}, after step {step:,}"))
    return shapes


def _shown_layers(model: ModelConfig) -> list[int]:
    """The first, the middle and the last layer that the encoding acts in, or the one that lends all others its weights.

    Layers are counted from 1.
    """
    lends = lender(model)
    encoded = [layer for layer in range(1, model.num_layers + 1) if layer not in model.nope_layers]
    if lends is not None or not encoded:
        return [lends] if lends is not None else []
    return sorted({encoded[0], encoded[(len(encoded) - 1) // 2], encoded[-1]})


def _drawn_weights(model: ModelConfig, generator: torch.Generator) -> Weights:
    """The weights of a layer as they are drawn."""
    sizes = LayerSizes(model.num_attention_heads, model.hidden_size, model.head_size)
    declared = model.encoding.layer_weights(sizes, generator)
    return {name: weight.value for name, weight in declared.items()}


def _refuse_others(checkpoint: Path, stored: Weights, drawn: Weights) -> None:
    there, here = ({name: tuple(weight.shape) for name, weight in weights.items()} for weights in (stored, drawn))
    if there != here:
        raise CheckpointError(Mistake(str(checkpoint), None, f"holds {there}, and the encoding has {here}", REMEDY))


def _by_distance(model: ModelConfig, weights: Weights, length: int) -> Tensor:
    """What the encoding does in a layer of these weights, `[H, distances]`; what is added to scores as a factor."""
    last = torch.tensor([length - 1])
    values = effect(model.encoding, weights, last, model.num_attention_heads, model.head_size)[:, 0].flip(1)
    if isinstance(model.encoding, ADDED):
        values = (values - values[:, :1]).exp()
    return values[:, _distances(length)]


def _shape(
    model: ModelConfig,
    runs: tuple[str, ...],
    length: int,
    values: Tensor,
    before: Tensor | None = None,
    untrained: str | None = None,
    trained: str | None = None,
) -> Shape:
    drawn = values[None] if before is None else torch.stack((values, before))
    if torch.equal(drawn, drawn[:, :1].expand_as(drawn)):
        drawn = drawn[:, :1]
    return Shape(
        encoding=model.encoding.name,
        meaning="factor on the weight" if isinstance(model.encoding, ADDED) else "score of ones",
        runs=runs,
        distances=_distances(length),
        heads=drawn[0].tolist(),
        untrained=untrained,
        trained=trained,
        before=() if before is None else drawn[1].tolist(),
    )


def _distances(length: int) -> list[int]:
    return sorted({round(place) - 1 for place in np.geomspace(1, length, NUM_DISTANCES)})
