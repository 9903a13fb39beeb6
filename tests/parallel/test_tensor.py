from pathlib import Path
from typing import ClassVar, Literal
from unittest.mock import Mock

import pytest
import torch
from megatron.core import dist_checkpointing
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup

from megatron_mep.checkpoint.writer import write_in_this_process
from megatron_mep.encodings.base import Encoding, LayerSizes, Weight
from megatron_mep.parallel.seeds import generator_of
from megatron_mep.parallel.tensor import EncodingWeights, is_encoding_weight, shared_by
from tests.support.distributed import joined, run

NUM_HEADS = 4
SIZES = LayerSizes(NUM_HEADS, hidden_size=16, head_size=4)
NUM_LAYERS = 3


class Toy(Encoding):
    """One weight of each sort, and a score of every head that uses them all."""

    name: Literal["toy"] = "toy"
    source: ClassVar[str] = "none"
    formula: ClassVar[str] = "slope_h mix_0 + mix_1 base_h scale"

    def weights(self, num_heads: int, generator: torch.Generator) -> dict[str, Weight]:
        return {
            "slope": Weight(torch.rand(num_heads, 2, generator=generator)),
            "base": Weight(torch.rand(num_heads, generator=generator), learned=False),
            "mix": Weight(torch.rand(2, generator=generator), per_head=False),
            "scale": Weight(torch.rand(1, generator=generator), learned=False, per_head=False),
        }


def score(slope: Tensor, base: Tensor, mix: Tensor, scale: Tensor) -> Tensor:
    """A number of each head, unlike in all of them."""
    return slope.prod(dim=1) * mix[0] + (mix[1] * base).sin() * scale


def _declared(seed: int, layer_number: int) -> dict[str, Weight]:
    return Toy(name="toy").layer_weights(SIZES, generator_of(seed, layer_number))


def weights_of(tensor_rank: int = 0, tensor_size: int = 1, layer_number: int = 1, seed: int = 0) -> EncodingWeights:
    return EncodingWeights(_declared(seed, layer_number), NUM_HEADS, tensor_rank, tensor_size, Mock(spec=ProcessGroup))


@pytest.mark.parametrize("tensor_size", [2, 4])
def test_ranks_together_hold_what_one_rank_holds(tensor_size: int):
    whole = weights_of().state_dict()
    parts = [weights_of(rank, tensor_size).state_dict() for rank in range(tensor_size)]
    for name in ("slope", "base"):
        assert torch.equal(torch.cat([part[name] for part in parts]), whole[name])
    for name in ("mix", "scale"):
        assert all(torch.equal(part[name], whole[name]) for part in parts)


def test_weights_depend_on_seed_and_layer_and_on_nothing_else():
    state = torch.get_rng_state()
    drawn = [weights_of(seed=seed, layer_number=layer).slope for seed, layer in [(0, 1), (0, 2), (1, 1), (1, 2)]]
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(99)
    assert torch.equal(weights_of().slope, drawn[0])
    assert len({tuple(slope.flatten().tolist()) for slope in drawn}) == 4


@pytest.mark.parametrize(
    "cast",
    [
        lambda tree: tree.bfloat16(),
        lambda tree: tree.half(),
        lambda tree: tree.double(),
        lambda tree: tree.to(torch.bfloat16),
        lambda tree: tree.to("cpu", torch.float16),
        lambda tree: Float16Module(
            TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1, bf16=True), tree
        ),
    ],
    ids=["bfloat16", "half", "double", "to dtype", "to device and dtype", "Megatron's wrapper"],
)
def test_weights_stay_fp32_when_the_model_around_them_is_cast(cast):
    weights = weights_of()
    before = {name: value.clone() for name, value in weights.state_dict().items()}
    parameter = weights.slope
    tree = nn.ModuleDict({"linear": nn.Linear(2, 2), "weights": weights})
    cast(tree)
    assert tree["linear"].weight.dtype != torch.float32
    assert all(torch.equal(weights.state_dict()[name], value) for name, value in before.items())
    assert all(value.dtype == torch.float32 for value in weights().values())
    assert weights.slope is parameter
    assert is_encoding_weight(parameter)


def test_weights_follow_the_model_to_another_device():
    weights = nn.Sequential(weights_of()).to("meta", torch.bfloat16)[0]
    assert all(value.is_meta and value.dtype == torch.float32 for value in weights.state_dict().values())
    assert all(not value.is_meta for value in weights.to_empty(device="cpu").state_dict().values())


def test_learned_weights_are_marked_for_optimizer_and_gradient_norm():
    weights = weights_of(1, 2)
    assert dict(weights.named_parameters()).keys() == {"slope", "mix"}
    assert all(is_encoding_weight(parameter) for parameter in weights.parameters())
    assert not is_encoding_weight(nn.Linear(1, 1).weight)
    assert (weights.slope.tensor_model_parallel, weights.slope.partition_dim) == (True, 0)
    assert not weights.mix.tensor_model_parallel


def test_what_the_formula_is_given_outlives_the_parameters_memory():
    weights = weights_of()
    given, slope = weights(), weights.slope.detach().clone()
    # what ZeRO 3 does after the forward pass of a module
    weights.slope.data = torch.empty(0)
    assert torch.equal(given["slope"], slope)


def test_heads_must_be_divisible_over_tensor_ranks():
    with pytest.raises(AssertionError, match="3 tensor ranks cannot share 4 heads"):
        weights_of(0, 3)


def test_gradients_are_those_of_one_rank_with_all_heads():
    run(_gradients, 2)


def _gradients():
    here = joined(tensor=2)
    weights = EncodingWeights(_declared(0, 1), NUM_HEADS, here.tensor_rank, 2, here.tensor_group)
    per_head = torch.tensor([1.0, -2.0, 3.0, 0.5])
    mine = slice(2 * here.tensor_rank, 2 * here.tensor_rank + 2)
    (score(**{name: value.double() for name, value in weights().items()}) * per_head[mine]).sum().backward()

    # by hand, in fp64, over all heads
    drawn = {name: value.double() for name, value in weights_of().state_dict().items()}
    slope, base, mix, scale = (drawn[name] for name in ("slope", "base", "mix", "scale"))
    toward_mix = torch.stack(
        [
            sum(per_head[head] * slope[head, 0] * slope[head, 1] for head in range(NUM_HEADS)),
            sum(per_head[head] * scale[0] * base[head] * (mix[1] * base[head]).cos() for head in range(NUM_HEADS)),
        ]
    )
    toward_slope = per_head[:, None] * mix[0] * slope.flip(1)
    # each rank's part of a gradient is rounded to fp32, and so is their sum
    rtol = 4 * torch.finfo(torch.float32).eps
    torch.testing.assert_close(weights.mix.grad.double(), toward_mix, rtol=rtol, atol=0)
    torch.testing.assert_close(weights.slope.grad.double(), toward_slope[mine], rtol=rtol, atol=0)


def test_a_checkpoint_loads_at_another_tensor_size(tmp_path: Path):
    run(_save, 2, tmp_path)
    metadata = dist_checkpointing.load_tensors_metadata(str(tmp_path))
    assert metadata["layers.slope"].global_shape == (NUM_LAYERS, NUM_HEADS, 2)
    assert metadata["layers.base"].global_shape == (NUM_LAYERS, NUM_HEADS)
    assert metadata["layers.mix"].global_shape == (NUM_LAYERS, 2)
    run(_load, 4, tmp_path, 4)
    run(_load, 4, tmp_path, 1)


def _layers(seed: int, tensor: int) -> list[EncodingWeights]:
    here = joined(tensor=tensor)
    return [
        EncodingWeights(_declared(seed, layer + 1), NUM_HEADS, here.tensor_rank, tensor, here.tensor_group)
        for layer in range(NUM_LAYERS)
    ]


def _sharded(layers: list[EncodingWeights]) -> dict[str, dict[str, object]]:
    """In the form of Megatron's transformer block, which stacks the layers."""
    return {
        f"layer {number}": layer.sharded_state_dict("layers.", ((0, number, NUM_LAYERS),))
        for number, layer in enumerate(layers)
    }


def _save(folder: Path) -> None:
    layers = _layers(seed=1, tensor=2)
    write_in_this_process()
    dist_checkpointing.save(_sharded(layers), str(folder))


def _load(folder: Path, tensor: int) -> None:
    layers = _layers(seed=2, tensor=tensor)
    loaded = dist_checkpointing.load(_sharded(layers), str(folder))
    for number, layer in enumerate(layers):
        values = loaded[f"layer {number}"]
        layer.load_state_dict({name.removeprefix("layers."): value for name, value in values.items()})
        rank = distributed.get_rank() % tensor
        for name, value in weights_of(rank, tensor, number + 1, seed=1).state_dict().items():
            assert torch.equal(layer.state_dict()[name], value)


def test_gradients_of_what_ranks_share_are_summed_in_any_layout():
    run(_shared, 2)


def _shared():
    here = joined(tensor=2)
    tensor = torch.ones(2, 3, requires_grad=True)
    part = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) * (1 + here.tensor_rank)
    (shared_by(here.tensor_group, tensor).T * part.T.contiguous()).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [[3.0, 6.0, 9.0], [12.0, 15.0, 18.0]]
