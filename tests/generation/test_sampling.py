import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from megatron_mep.generation.config import GenerationConfig
from megatron_mep.generation.sampling import distribution, next_tokens


def options(**changes: Any) -> GenerationConfig:
    return GenerationConfig.model_validate({"temperature": 1.0, "top_p": 1.0, **changes})


def logits_of(*shares: float) -> Tensor:
    """fp32 logits of one distribution, off by a constant as logits may be: `[1, V]`."""
    return torch.tensor([[math.log(share) + 7 if share else -math.inf for share in shares]], dtype=torch.float32)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# not in order of size, as tokens never are
SHARES = (0.1, 0.4, 0.2, 0.3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 3}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_k": 9}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_p": 0.001}, [0, 1, 0, 0]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"top_p": 0.41}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.89}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_p": 0.91}, [0.1, 0.4, 0.2, 0.3]),
        # after top_k=2 the likeliest holds 4/7 = 0.571
        ({"top_k": 2, "top_p": 0.56}, [0, 1, 0, 0]),
        ({"top_k": 2, "top_p": 0.58}, [0, 4 / 7, 0, 3 / 7]),
        # at half the temperature the likeliest holds 16/30
        ({"temperature": 0.5, "top_p": 0.53}, [0, 1, 0, 0]),
    ],
)
def test_what_is_left_of_a_distribution(changes: dict[str, Any], expected: list[float]):
    found = distribution(logits_of(*SHARES).double(), options(**changes))
    # the logits come rounded to fp32
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64), rtol=1e-5, atol=0)


def test_each_row_is_cut_by_itself():
    logits = torch.cat([logits_of(0.8, 0.1, 0.1), logits_of(0.25, 0.25, 0.5)]).double()
    found = distribution(logits, options(top_p=0.7))
    expected = torch.tensor([[1, 0, 0], [1 / 3, 0, 2 / 3]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_of_equal_logits_those_of_the_smaller_tokens_are_kept():
    ties = torch.tensor([[1.0, 3.0, 3.0, 3.0, 1.0]], dtype=torch.float64)
    assert distribution(ties, options(top_k=2)).tolist() == [[0, 0.5, 0.5, 0, 0]]
    assert distribution(ties, options(top_p=0.5)).tolist() == [[0, 0.5, 0.5, 0, 0]]
    many = torch.zeros(1, 5000)
    assert next_tokens(many, options(temperature=0), seeded(0)).tolist() == [0]
    assert distribution(many.double(), options(top_k=2))[0].nonzero().flatten().tolist() == [0, 1]


@pytest.mark.parametrize("changes", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-300}])
def test_the_narrowest_draw_is_the_greedy_one(changes: dict[str, Any]):
    logits = torch.randn(4, 50, generator=seeded(1))
    greedy = next_tokens(logits, options(temperature=0, top_k=3), seeded(0))
    assert greedy.tolist() == logits.argmax(dim=-1).tolist()
    assert next_tokens(logits, options(**changes), seeded(0)).tolist() == greedy.tolist()


def test_greedy_draws_nothing():
    generator = seeded(5)
    next_tokens(logits_of(*SHARES), options(temperature=0), generator)
    assert generator.get_state().equal(seeded(5).get_state())


def test_a_seed_gives_the_same_tokens_and_another_seed_others():
    logits = torch.randn(1, 1000, generator=seeded(2))

    def drawn(seed: int) -> list[int]:
        generator = seeded(seed)
        return [int(next_tokens(logits, options(), generator)) for _ in range(8)]

    assert drawn(3) == drawn(3) != drawn(4)
    assert len(set(drawn(3))) > 1


def test_tokens_come_as_often_as_they_are_likely():
    num_draws = 20_000
    drawn = next_tokens(logits_of(*SHARES, 0).expand(num_draws, -1), options(), seeded(0))
    counts = Counter(drawn.tolist())
    assert set(counts) == {0, 1, 2, 3}
    for token, share in enumerate(SHARES):
        # five standard deviations
        assert abs(counts[token] / num_draws - share) < 5 * math.sqrt(share * (1 - share) / num_draws)


def test_what_is_cut_is_never_drawn():
    drawn = next_tokens(logits_of(*SHARES).expand(5000, -1), options(top_k=2), seeded(0))
    assert set(drawn.tolist()) == {1, 3}


def test_logits_of_reduced_precision_are_drawn_from_as_they_are():
    logits = torch.randn(1, 500, generator=seeded(2)).bfloat16()
    assert next_tokens(logits, options(), seeded(1)).equal(next_tokens(logits.double(), options(), seeded(1)))
