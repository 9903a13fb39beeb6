"""The bound of scores between normed queries and keys."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from megatron_mep.model.norm import HeadNorm, largest_score

HEAD_SIZE, SCALE = 16, 0.25
KINDS = ("RMSNorm", "LayerNorm")


def head_norm(kind: str, seed: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A norm whose gains, and biases where it has them, are of either sign and no two alike."""
    norm = HeadNorm(SimpleNamespace(normalization=kind, sequence_parallel=False), HEAD_SIZE).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(HEAD_SIZE, generator=generator))
    return norm


def vectors(seed: int, num: int) -> Tensor:
    """Of many sizes, most with one large number among small ones."""
    generator = torch.Generator().manual_seed(seed)
    return 100 * torch.randn(num, HEAD_SIZE, generator=generator, dtype=torch.float64) ** 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_no_score_exceeds_the_bound(kind: str, dtype: torch.dtype):
    for seed in range(5):
        query_norm, key_norm = head_norm(kind, seed, dtype), head_norm(kind, seed + 100, dtype)
        aligned = torch.diag(torch.full((HEAD_SIZE,), 1e6, dtype=torch.float64))
        query = query_norm(torch.cat([vectors(seed, 400), aligned]).to(dtype))
        key = key_norm(torch.cat([vectors(seed + 1, 400), aligned, -aligned]).to(dtype))
        scores = SCALE * query.double() @ key.double().T
        bound = largest_score(query_norm, key_norm, SCALE)
        assert bound.dtype == torch.float64
        assert scores.abs().max() <= bound
        assert scores.abs().max() > 0.3 * bound


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norms_attain_it(dtype: torch.dtype):
    query_norm, key_norm = head_norm("RMSNorm", 1, dtype), head_norm("RMSNorm", 2, dtype)
    largest = (query_norm.weight * key_norm.weight).abs().argmax()
    along = torch.zeros(HEAD_SIZE, dtype=dtype)
    along[largest] = 1e6
    score = SCALE * (query_norm(along).double() @ key_norm(along).double()).abs()
    # the bound leaves room for the rounding of what is put out, which may go either way
    torch.testing.assert_close(
        largest_score(query_norm, key_norm, SCALE), score, rtol=4 * torch.finfo(dtype).eps, atol=0
    )
    assert score <= largest_score(query_norm, key_norm, SCALE)


@pytest.mark.parametrize("kind", KINDS)
def test_at_the_start_it_is_the_root_of_the_head_size(kind: str):
    norms = [HeadNorm(SimpleNamespace(normalization=kind, sequence_parallel=False), 64) for _ in range(2)]
    assert float(largest_score(*norms, 64**-0.5)) == pytest.approx(8, rel=1e-6)


def test_layer_norms_attain_it_with_biases():
    # gains alike and biases along a vector of mean 0: all terms of the bound point one way
    query_norm, key_norm = head_norm("LayerNorm", 1), head_norm("LayerNorm", 2)
    along = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(HEAD_SIZE // 2)
    with torch.no_grad():
        for norm, gain, bias in ((query_norm, 1.5, 0.5), (key_norm, -0.5, -2.0)):
            norm.weight.fill_(gain)
            norm.bias.copy_(bias * along)
    score = SCALE * (query_norm(1e6 * along) @ key_norm(1e6 * along)).abs()
    torch.testing.assert_close(score, largest_score(query_norm, key_norm, SCALE), rtol=1e-12, atol=0)
    assert float(score) == pytest.approx(SCALE * HEAD_SIZE * 2.0 * 2.5)
