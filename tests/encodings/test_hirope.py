"""HiRoPE, against complex numbers in loops, and in its limits."""

import cmath

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.hirope import Hirope
from megatron_mep.encodings.products import scores
from megatron_mep.encodings.rope import Rope

LENGTH, HEAD_SIZE = 13, 8


def random(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads() -> tuple[Tensor, Tensor]:
    return random(2, 4, LENGTH, HEAD_SIZE), random(2, 2, LENGTH, HEAD_SIZE, seed=1)


def tracks(encoding: Hirope) -> Tensor:
    tokens = torch.arange(2 * LENGTH).reshape(2, LENGTH)
    return encoding.places(tokens, training=False).double()


def by_rope(query: Tensor, key: Tensor, base: float) -> Tensor:
    position = torch.arange(LENGTH, dtype=torch.float64)
    turned = (Rope(base=base).turned(each.permute(2, 0, 1, 3), position).permute(1, 2, 0, 3) for each in (query, key))
    return scores(*turned)


def by_hirope(query: Tensor, key: Tensor, encoding: Hirope) -> Tensor:
    position = tracks(encoding)
    return encoding.of_pairs(query, key, position, position)


@pytest.mark.parametrize(("split", "fast"), [(0.0, 0), (0.25, 1), (0.5, 2), (1.0, 4)])
def test_slow_pairs_turn_by_segments_beyond_the_window(split: float, fast: int) -> None:
    encoding = Hirope(split=split, window=4, segment_length=3, base=100.0)
    query, key = heads()
    found = by_hirope(query, key, encoding)
    for head in range(4):
        for i in range(LENGTH):
            for j in range(i + 1):
                total = 0.0
                for m in range(4):
                    by_token = i - j < 4 or m < fast
                    steps = i - j if by_token else i // 3 - j // 3
                    one = complex(float(query[0, head, i, m]), float(query[0, head, i, m + 4]))
                    other = complex(float(key[0, head // 2, j, m]), float(key[0, head // 2, j, m + 4]))
                    total += (one * other.conjugate() * cmath.exp(1j * steps * 100.0 ** (-2 * m / 8))).real
                assert float(found[0, head, i, j]) == pytest.approx(total, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(
    "encoding",
    [
        Hirope(segment_length=1, window=0, base=500.0),
        Hirope(segment_length=4, window=LENGTH, base=500.0),
        Hirope(segment_length=4, window=0, split=1.0, base=500.0),
    ],
    ids=["segments of one token", "a window over all", "no slow pairs"],
)
def test_it_is_rope_in_its_limits(encoding: Hirope) -> None:
    query, key = heads()
    torch.testing.assert_close(by_hirope(query, key, encoding), by_rope(query, key, 500.0), rtol=1e-12, atol=1e-12)
    changed = by_hirope(query, key, Hirope(segment_length=4, window=3, base=500.0))
    assert not torch.allclose(changed.tril(), by_rope(query, key, 500.0).tril())


def test_segments_are_of_so_many_tokens_or_lines() -> None:
    tokens = torch.tensor([[7, 7, 2, 7, 2, 2, 7]])
    assert Hirope(segment_length=3).places(tokens, training=False)[1].tolist() == [[0, 0, 0, 1, 1, 1, 2]]
    lines = Hirope(segments_by="line", ends=(2,)).places(tokens, training=False)
    assert lines.tolist() == [[[0, 1, 2, 3, 4, 5, 6]], [[0, 0, 0, 1, 1, 2, 3]]]


def test_ends_of_segments_by_length_are_refused() -> None:
    with pytest.raises(ValidationError, match="end with no token; leave ends out, or set segments_by to line"):
        Hirope(ends=(3,))


def test_heads_of_odd_size_are_told() -> None:
    (mistake,) = Hirope().mistakes(LayerSizes(num_heads=2, hidden_size=6, head_size=3))
    assert mistake.key == "name"
