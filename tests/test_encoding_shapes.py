"""Shapes of the encodings of runs: as trained by the checkpoint that was measured, else as before training."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn.functional import softplus

from megatron_mep.checkpoint.files import find
from megatron_mep.encoding_shapes import shapes_of
from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.reporting.shapes import Shape, shape_chart
from megatron_mep.reporting.sources import Sources
from tests.checkpoint.job import FRESH, SAVED, STEPS, Job, Run, World
from tests.support.distributed import run
from tests.support.runs import run_tree

LENGTH = 64
MODELS: dict[str, dict[str, Any]] = {
    "own": {"encoding": {"name": "kerple_log"}, "num_layers": 5, "nope_layers": [1]},
    "shared": {"encoding": {"name": "kerple_log", "shared_by_layers": True}},
}
Bounds = dict[int, tuple[Tensor, Tensor]]
"""r1 and r2 of this rank's heads, by layers."""


def sources(checkpoints: dict[str, Path] | None = None, **runs: dict[str, Any]) -> Sources:
    """Run files of models, by the names of runs, each of a seed that is its place."""
    trees = {name: run_tree(name=name, seed=seed, model=model) for seed, (name, model) in enumerate(runs.items())}
    return Sources(settings={name: yaml.safe_dump(tree) for name, tree in trees.items()}, checkpoints=checkpoints or {})


def encodings(**runs: dict[str, Any]) -> Sources:
    return sources(**{name: {"encoding": encoding} for name, encoding in runs.items()})


def test_the_shape_of_a_bias_is_its_factor_on_the_weight() -> None:
    (shape,) = shapes_of(encodings(run={"name": "alibi"}), LENGTH)
    assert (shape.encoding, shape.meaning, shape.runs) == ("alibi", "factor on the weight", ("run",))
    assert (shape.untrained, shape.trained, shape.before) == (None, None, ())
    assert (shape.distances[0], shape.distances[-1]) == (0, 63)
    num_heads = len(shape.heads)
    for head, values in enumerate(shape.heads, start=1):
        slope = 2 ** (-8 * head / num_heads)
        assert values == pytest.approx([math.exp(-slope * distance) for distance in shape.distances], rel=1e-5)


def test_runs_of_one_encoding_share_its_shape() -> None:
    shapes = shapes_of(encodings(a={"name": "alibi"}, b={"name": "fire"}, c={"name": "alibi"}), LENGTH)
    untold = "b names no checkpoint in its rows"
    assert [(shape.encoding, shape.runs, shape.untrained) for shape in shapes] == [
        ("alibi", ("a", "c"), None),
        ("fire", ("b",), untold),
    ]


def test_heads_that_are_alike_have_one_curve() -> None:
    (shape,) = shapes_of(encodings(run={"name": "rope"}), LENGTH)
    (curve,) = shape_chart(shape, "shape").curves
    assert curve.name == "every head"
    assert curve.points[0].y == pytest.approx(1.0)


def test_what_depends_on_tokens_has_no_shape_and_an_unreadable_run_file_none_either() -> None:
    found = encodings(a={"name": "nope"}, b={"name": "cable"})
    found.settings["old"] = "model: {layers: 3}\n"
    assert shapes_of(found, LENGTH) == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of two tensor ranks, the same written by one rank, and what the modules had in them."""
    root = tmp_path_factory.mktemp("trained")
    run(_train, 2, root)
    run(_write_again, 1, root)
    return root


def drawn(trained: Path, model: str, size: int = 2, **changes: Any) -> list[Shape]:
    """What a report draws of a run whose checkpoint `size` ranks wrote."""
    tree = run_tree(name="run", seed=SAVED, model=MODELS[model] | {"hidden_size": 32}, **changes)
    checkpoints = {"run": find(trained / model / str(size))}
    return shapes_of(Sources(settings={"run": yaml.safe_dump(tree)}, checkpoints=checkpoints), LENGTH)


def factors(bounds: Bounds, layer: int, distances: list[int]) -> Tensor:
    """(1 + r2 d)^(-r1) by the paper, in fp64."""
    r1, r2 = (softplus(bound.double())[:, None] for bound in bounds[layer])
    return (1 + r2 * torch.tensor(distances, dtype=torch.float64)) ** -r1


@pytest.mark.parametrize(
    ("model", "layers"),
    [("own", {2: "layer 2 of 5", 3: "layer 3 of 5", 5: "layer 5 of 5"}), ("shared", {1: "shared by its layers"})],
)
def test_the_drawn_heads_are_those_of_the_modules_that_trained(
    trained: Path, model: str, layers: dict[int, str]
) -> None:
    before, after = torch.load(trained / model / "live.pt")
    shapes = drawn(trained, model)
    assert [shape.trained for shape in shapes] == [f"{told}, after step {STEPS}" for told in layers.values()]
    for layer, shape in zip(layers, shapes, strict=True):
        assert (shape.encoding, shape.runs, shape.untrained) == ("kerple_log", ("run",), None)
        for values, bounds in ((shape.heads, after), (shape.before, before)):
            expected = factors(bounds, layer, list(shape.distances))
            torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), expected, rtol=1e-12, atol=0)
        assert shape.heads != shape.before, "training has moved them"


@pytest.mark.parametrize("model", MODELS)
def test_equal_weights_are_drawn_alike_whoever_wrote_them(trained: Path, model: str) -> None:
    assert drawn(trained, model, size=1) == drawn(trained, model, size=2)


def test_what_a_run_was_begun_from_is_not_drawn_by_its_seed(trained: Path) -> None:
    for shape in drawn(trained, "own", init_from="runs/other"):
        assert shape.before == ()
        assert [curve.kind for curve in shape_chart(shape, "shape").curves] == ["plain"] * 4


def test_a_checkpoint_that_is_gone_is_told(trained: Path, tmp_path: Path) -> None:
    gone = tmp_path / "step_00000002"
    (shape,) = shapes_of(sources({"a": gone}, a=MODELS["own"], b=MODELS["own"]), LENGTH)
    assert shape.runs == ("a", "b")
    assert shape.untrained == f"{gone} is not there"
    assert (shape.trained, shape.before) == (None, ())
    shutil.copytree(find(trained / "own" / "2"), gone)
    (gone / ".metadata").unlink()
    (shape, _) = shapes_of(sources({"a": gone}, a=MODELS["own"], b=MODELS["shared"]), LENGTH)
    assert shape.untrained == f"{gone / '.metadata'} is missing"


def test_a_checkpoint_of_another_model_is_told(trained: Path) -> None:
    checkpoint = find(trained / "own" / "2")
    (shape,) = shapes_of(sources({"a": checkpoint}, a=MODELS["own"] | {"encoding": {"name": "kerple_3log"}}), LENGTH)
    assert shape.untrained is not None
    assert str(checkpoint) in shape.untrained
    assert "'r3'" in shape.untrained


def test_of_seeds_the_first_with_a_checkpoint_is_drawn(trained: Path) -> None:
    wide = {"hidden_size": 32}
    models = dict.fromkeys(("a", "b", "c"), MODELS["shared"] | wide) | {"d": MODELS["own"] | wide}
    shapes = shapes_of(sources({"b": find(trained / "shared" / "2")}, **models), LENGTH)
    assert [(shape.runs, shape.trained) for shape in shapes] == [
        (("b", "a", "c"), f"shared by its layers, after step {STEPS}"),
        (("d",), None),
    ]


def _train(root: Path) -> None:
    world = World(2, ParallelConfig(tensor=2))
    here = world.joined()
    for name, options in MODELS.items():
        job = Job(Run("", 1, model=options), world, here, SAVED)
        before = _bounds(job)
        job.train(1, STEPS)
        job.save(root / name / "2")
        after = _bounds(job)
        if here.rank == 0:
            torch.save((before, after), root / name / "live.pt")


def _bounds(job: Job) -> Bounds:
    """Those of all heads; collective."""
    mine = {
        layer.layer_number: {name: weight.detach().clone() for name, weight in layer.given_weights().items()}
        for layer in encoded_layers(job.engine.module)
        if layer.given_weights()
    }
    everyone: list[Any] = [None] * job.here.tensor_size
    torch.distributed.all_gather_object(everyone, mine, job.here.tensor_group)
    return {
        layer: tuple(torch.cat([part[layer][name] for part in everyone]) for name in ("r1", "r2"))  # type: ignore[misc]
        for layer in mine
    }


def _write_again(root: Path) -> None:
    world = World(1)
    here = world.joined()
    for name, options in MODELS.items():
        job = Job(Run("", 1, model=options), world, here, FRESH)
        job.load(root / name / "2")
        job.save(root / name / "1")
