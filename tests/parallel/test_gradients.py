import torch
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from torch import Tensor, distributed, nn
from torch.nn.functional import gelu, layer_norm, linear

from megatron_mep.parallel.gradients import sum_over_tensor_ranks
from tests.support.distributed import joined, run

TENSOR_SIZE = 2
SEQ_LENGTH, BATCH, HIDDEN, FFN = 4, 3, 6, 8
RTOL = 1e-12


class Block(nn.Module):
    """A norm and a feed-forward layer under sequence parallelism, in fp64."""

    def __init__(self) -> None:
        super().__init__()
        config = ModelParallelConfig(
            tensor_model_parallel_size=TENSOR_SIZE,
            sequence_parallel=True,
            use_cpu_initialization=True,
            params_dtype=torch.float64,
        )
        draw = nn.init.normal_
        self.norm = nn.LayerNorm(HIDDEN, dtype=torch.float64)
        self.up = ColumnParallelLinear(HIDDEN, FFN, config=config, init_method=draw, gather_output=False)
        self.down = RowParallelLinear(
            FFN, HIDDEN, config=config, init_method=draw, bias=True, input_is_parallel=True, skip_bias_add=False
        )
        for parameter in self.norm.parameters():
            parameter.sequence_parallel = True

    def forward(self, x: Tensor) -> Tensor:
        """From this rank's part of the sequence `[S / T, B, hidden]` to the same part."""
        return x + self.down(gelu(self.up(self.norm(x))[0]))[0]


def test_sequence_parallel_gradients_are_those_of_one_rank():
    run(_gradients, TENSOR_SIZE)


def _gradients():
    here = joined(tensor=TENSOR_SIZE)
    block = Block()
    sum_over_tensor_ranks(block, here.tensor_group)
    generator = torch.Generator().manual_seed(1)
    micro_batches = torch.randn(2, SEQ_LENGTH, BATCH, HIDDEN, generator=generator, dtype=torch.float64)
    target = torch.randn(SEQ_LENGTH, BATCH, HIDDEN, generator=generator, dtype=torch.float64)

    def part(whole: Tensor, dim: int = 0) -> Tensor:
        return whole.chunk(TENSOR_SIZE, dim)[here.tensor_rank]

    # gradients accumulate over two micro-batches, as they do where ZeRO 1 accumulates them
    outputs = [block(part(x)) for x in micro_batches]
    for y in outputs:
        (y * part(target)).sum().backward()

    # the same in plain torch, with the whole weights and the whole sequence
    whole = {
        "norm.weight": block.norm.weight.detach().clone(),
        "norm.bias": block.norm.bias.detach().clone(),
        "up.weight": _gathered(block.up.weight, 0),
        "up.bias": _gathered(block.up.bias, 0),
        "down.weight": _gathered(block.down.weight, 1),
        "down.bias": block.down.bias.detach().clone(),
    }
    for weight in whole.values():
        weight.requires_grad_()
    for x, y in zip(micro_batches, outputs, strict=True):
        normed = layer_norm(x, (HIDDEN,), whole["norm.weight"], whole["norm.bias"])
        inner = gelu(linear(normed, whole["up.weight"], whole["up.bias"]))
        expected = x + linear(inner, whole["down.weight"], whole["down.bias"])
        torch.testing.assert_close(y, part(expected), rtol=RTOL, atol=RTOL)
        (expected * target).sum().backward()

    dims = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    for name, parameter in block.named_parameters():
        gradient = whole[name].grad
        expected = part(gradient, dims[name]) if name in dims else gradient
        torch.testing.assert_close(parameter.grad, expected, rtol=RTOL, atol=RTOL, msg=name)


def _gathered(shard: Tensor, dim: int) -> Tensor:
    shards = [torch.empty_like(shard) for _ in range(TENSOR_SIZE)]
    distributed.all_gather(shards, shard.detach())
    return torch.cat(shards, dim)


def test_bf16_gradients_are_summed_in_fp32():
    run(_bf16, 3)


def _bf16():
    here = joined(tensor=3)
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    weight.sequence_parallel = True
    sum_over_tensor_ranks(nn.ParameterList([weight]), here.tensor_group)
    # 257.002 rounds to 258; rounded after each addition it is 256, whatever the order
    (weight * (256.0, 1.0, 2.0**-9)[here.tensor_rank]).sum().backward()
    assert weight.grad.dtype == torch.bfloat16
    assert weight.grad.item() == 258


def test_one_tensor_rank_sums_nothing():
    run(_alone, 1)


def _alone():
    here = joined()
    weight = nn.Parameter(torch.zeros(1))
    weight.sequence_parallel = True
    sum_over_tensor_ranks(nn.ParameterList([weight]), here.tensor_group)
    assert not weight._backward_hooks
