"""The weights of a checkpoint's encoding, read without a model: those of the module that trained, at every layout."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from megatron_mep.checkpoint.encoding import encoding_weights
from megatron_mep.checkpoint.files import find
from megatron_mep.config.errors import CheckpointError
from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.parallel.config import ParallelConfig
from tests.checkpoint.job import FRESH, SAVED, STEPS, Job, Run, World
from tests.support.distributed import run
from tests.support.tiny import LEARNED
from tests.support.tolerance import assert_exact_equal

FIRE = {"name": "fire", "width": 3}
MODELS: dict[str, dict[str, Any]] = {
    # weights of each head, in a stack of layers
    "stacked": {"encoding": LEARNED},
    # most are of all heads, and one layer has none
    "apart": {"encoding": FIRE, "num_layers": 4, "nope_layers": [2]},
    "shared": {"encoding": FIRE | {"shared_by_layers": True}, "num_layers": 4, "nope_layers": [1]},
    # with a constant
    "constant": {"encoding": {"name": "t5", "scaled": True}},
}
TENSOR, PIPELINE = World(2, ParallelConfig(tensor=2)), World(2, ParallelConfig(pipeline=2))
Layers = dict[int, dict[str, Tensor]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each model, trained by two tensor ranks and by two pipeline stages."""
    root = tmp_path_factory.mktemp("encodings")
    for name, world in (("tensor", TENSOR), ("pipeline", PIPELINE)):
        run(_train, world.size, root / name, world)
    return root


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
@pytest.mark.parametrize("model", MODELS)
def test_they_are_those_of_the_module_that_trained(saved: Path, layout: str, model: str) -> None:
    expected: Layers = torch.load(saved / layout / model / "live.pt")
    found = encoding_weights(find(saved / layout / model), list(expected))
    assert found.keys() == expected.keys()
    assert {"stacked": 2, "apart": 3, "shared": 1, "constant": 2}[model] == len(expected)
    for layer, weights in expected.items():
        assert found[layer].keys() == weights.keys()
        for name, value in weights.items():
            assert_exact_equal(found[layer][name], value, f"layer {layer}, {name}")


def test_one_rank_and_two_write_the_same(saved: Path, tmp_path: Path) -> None:
    run(_write_again, 1, saved / "tensor", tmp_path)
    for model in MODELS:
        there, here = (encoding_weights(find(root / model), (1, 2)) for root in (saved / "tensor", tmp_path))
        for layer in (1, 2):
            for name, value in there[layer].items():
                assert_exact_equal(here[layer].pop(name), value, f"{model}, layer {layer}, {name}")
            assert not here[layer]


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A checkpoint that may be damaged."""
    return Path(shutil.copytree(find(saved / "tensor" / "stacked"), tmp_path / "checkpoint"))


def test_what_is_damaged_is_told(folder: Path) -> None:
    data = next(folder.glob("*.distcp"))
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=rf"{re.escape(data.name)}.* bytes in place of"):
        encoding_weights(folder, (1,))
    data.write_bytes(bytes(len(content)))
    with pytest.raises(CheckpointError, match="checkpoint: is damaged: its tensors cannot be read"):
        encoding_weights(folder, (1,))
    data.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        encoding_weights(folder, (1,))
    (folder / ".metadata").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"\.metadata: is damaged"):
        encoding_weights(folder, (1,))


def test_no_hash_of_the_weights_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    monkeypatch.setattr("megatron_mep.checkpoint.manifest._sha256", lambda file: hashed.append(file.name))
    with pytest.raises(CheckpointError):
        encoding_weights(folder, (1,))
    assert hashed
    assert not [name for name in hashed if name.endswith(".distcp")]


def _train(root: Path, world: World) -> None:
    here = world.joined()
    for name, options in MODELS.items():
        job = Job(Run("", 1, model=options), world, here, SAVED)
        job.train(1, STEPS)
        job.save(root / name)
        everyone: list[list[Layers]] = [[]] * here.world_size
        distributed.all_gather_object(everyone, _live(job))
        if here.rank == 0:
            torch.save(_whole(everyone, shared="shared" in name), root / name / "live.pt")


def _live(job: Job) -> list[Layers]:
    """This rank's part of the weights of heads, and of what all heads share, by layers that have their own."""
    of_heads: Layers = {}
    of_all: Layers = {}
    for layer in encoded_layers(job.engine.module):
        if layer.encoding_weights is None:
            continue
        for name, weight in (*layer.encoding_weights.named_parameters(), *layer.encoding_weights.named_buffers()):
            part = of_heads if getattr(weight, "tensor_model_parallel", False) else of_all
            part.setdefault(layer.layer_number, {})[name] = weight.detach().clone()
    return [of_heads, of_all]


def _whole(everyone: list[list[Layers]], shared: bool) -> Layers:
    """The heads of all ranks that have a layer, in their order, and what is alike on them; the first of shared ones."""
    found: Layers = {}
    for of_heads, of_all in everyone:
        for layer, weights in of_heads.items():
            known = found.setdefault(layer, {})
            for name, part in weights.items():
                known[name] = torch.cat((known[name], part)) if name in known else part
        for layer, weights in of_all.items():
            found.setdefault(layer, {}).update(weights)
    return {min(found): found[min(found)]} if shared else found


def _write_again(source: Path, to: Path) -> None:
    world = World(1)
    here = world.joined()
    for name, options in MODELS.items():
        job = Job(Run("", 1, model=options), world, here, FRESH)
        job.load(source / name)
        job.save(to / name)
