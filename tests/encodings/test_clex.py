"""CLEX: its frequencies against the authors' equation, integrated by small steps, and what it draws in training."""

import math

import pytest
import torch
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.clex import Clex, integrated
from megatron_mep.encodings.rope import Rope
from megatron_mep.run import run_of
from tests.encodings.oracle import fp64
from tests.support.runs import run_tree

HEAD_SIZE, BASE = 6, 100.0
SIZES = LayerSizes(num_heads=2, hidden_size=12, head_size=HEAD_SIZE)


def clex(**options: object) -> Clex:
    return Clex.model_validate({"base": BASE, "train_length": 8, **options})


def network(width: int = 1) -> dict[str, Tensor]:
    """A network that changes frequencies by a few tenths."""
    generator = torch.Generator().manual_seed(4)
    hidden = width * HEAD_SIZE
    up = torch.randn(HEAD_SIZE // 2, hidden, generator=generator, dtype=torch.float64)
    return {"up": up / 2, "down": torch.randn(hidden, HEAD_SIZE // 2, generator=generator, dtype=torch.float64) / 20}


def at_rest() -> dict[str, Tensor]:
    return {name: weight.value for name, weight in clex().layer_weights(SIZES, torch.Generator()).items()}


def by_the_authors(factor: float, activation: str, up: Tensor, down: Tensor) -> list[float]:
    """d log f / dt = act((log f + log n) U) W + d log n / dt from t = 1, by the midpoint rule in steps of 1/2000."""
    pairs, hidden = up.shape
    rows, columns = up.tolist(), down.tolist()
    exponents = [2 * m / (HEAD_SIZE - 2) for m in range(pairs)]
    logs = [-2 * m / HEAD_SIZE * math.log(BASE) for m in range(pairs)]

    def change(time: float, value: list[float]) -> list[float]:
        ntk = [start - exponent * math.log(2 * time - 1) for start, exponent in zip(logs, exponents, strict=True)]
        inputs = [one + other for one, other in zip(value, ntk, strict=True)]
        sums = [sum(inputs[m] * rows[m][k] for m in range(pairs)) for k in range(hidden)]
        acts = [math.tanh(x) if activation == "tanh" else x / (1 + math.exp(-x)) for x in sums]
        return [
            sum(acts[k] * columns[k][m] for k in range(hidden)) - 2 * exponents[m] / (2 * time - 1)
            for m in range(pairs)
        ]

    value, time, step = list(logs), 1.0, 1 / 2000
    for _ in range(round((factor - 1) / step)):
        half = [one + step / 2 * slope for one, slope in zip(value, change(time, value), strict=True)]
        value = [one + step * slope for one, slope in zip(value, change(time + step / 2, half), strict=True)]
        time += step
    return [math.exp(one) for one in value]


@pytest.mark.parametrize(("activation", "width"), [("silu", 1), ("tanh", 2)])
def test_frequencies_follow_the_authors_equation(activation: str, width: int) -> None:
    weights = network(width)
    encoding = clex(activation=activation, width=width)
    for factor in (1.0, 2.0, 4.0):
        found = encoding.frequencies(fp64(factor), HEAD_SIZE, **weights)
        torch.testing.assert_close(found, fp64(by_the_authors(factor, activation, **weights)), rtol=2e-6, atol=0)
    untrained = encoding.frequencies(fp64(4.0), HEAD_SIZE, **at_rest())
    assert (found / untrained).log().abs().max() > 0.1, "the network does nothing"


def test_a_network_at_rest_scales_as_ntk_does() -> None:
    for factor in (1.0, 2.0, 7.0):
        found = clex().frequencies(fp64(factor), HEAD_SIZE, **at_rest())
        base = BASE * (2 * factor - 1) ** (HEAD_SIZE / (HEAD_SIZE - 2))
        torch.testing.assert_close(found, fp64([base ** (-2 * m / HEAD_SIZE) for m in range(3)]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("weights", [at_rest(), network()], ids=["at rest", "trained"])
def test_within_the_training_length_it_is_rope(weights: dict[str, Tensor]) -> None:
    position = torch.arange(8, dtype=torch.float64)
    found, expected = clex().angles(position, HEAD_SIZE, **weights), Rope(base=BASE).angles(position, HEAD_SIZE)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    longer = clex().angles(torch.arange(9, dtype=torch.float64), HEAD_SIZE, **weights)
    assert not torch.allclose(longer[:8], expected)


def test_the_factor_is_the_length_in_training_lengths_up_to_the_largest() -> None:
    weights = network()
    for length, factor in ((1, 1.0), (8, 1.0), (9, 2.0), (16, 2.0), (17, 3.0), (24, 3.0), (25, 3.0), (4000, 3.0)):
        position = torch.arange(length, dtype=torch.float64)
        found = clex(max_factor=3).angles(position, HEAD_SIZE, **weights)
        frequency = clex().frequencies(fp64(factor), HEAD_SIZE, **weights)
        torch.testing.assert_close(found, position[:, None] * frequency, rtol=1e-12, atol=0)


def test_the_last_queries_turn_as_their_keys_do() -> None:
    heads = torch.randn(20, 1, 2, HEAD_SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    position = torch.arange(20, dtype=torch.float64).expand(1, 1, -1)
    whole = clex().turned(heads, position, **network())
    assert clex().turned(heads[17:], position[..., 17:], **network()).equal(whole[17:])


def test_training_draws_a_factor_and_sorted_positions_up_to_its_end() -> None:
    torch.manual_seed(0)
    tokens, factors, inner = torch.zeros(3, 8, dtype=torch.int64), set(), set()
    for _ in range(100):
        places = clex(max_factor=4).places(tokens, training=True)
        assert places.shape == (1, 3, 8)
        assert places.equal(places[:, :1].expand_as(places)), "one draw for all samples"
        row = places[0, 0]
        assert (row.diff() > 0).all()
        assert row[0] == 0
        factor, rest = divmod(int(row[-1]) + 1, 8)
        assert rest == 0
        factors.add(factor)
        inner |= set(row[1:-1].tolist()) if factor == 4 else set()
    assert factors == {1, 2, 3, 4}
    assert inner == set(range(1, 31)), "every position between the first and the last is drawn at times"


def test_the_last_position_tells_the_factor_that_was_drawn() -> None:
    torch.manual_seed(0)
    for _ in range(10):
        position = clex(max_factor=4).places(torch.zeros(1, 8, dtype=torch.int64), training=True)[0].double()
        frequency = clex().frequencies((position[0, -1] + 1) / 8, HEAD_SIZE, **network())
        expected = position[..., None] * frequency
        torch.testing.assert_close(clex().angles(position, HEAD_SIZE, **network()), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_training_on_few_tokens_places_them_too(length: int) -> None:
    for _ in range(20):
        row = clex().places(torch.zeros(1, length, dtype=torch.int64), training=True)[0, 0]
        assert len(row) == length
        assert (row.diff() > 0).all()


@pytest.mark.parametrize(("train_length", "least"), [(32, 1), (8, 2), (3, 6)])
def test_every_factor_is_trained_that_the_length_leaves_whatever_training_length_is_stated(
    train_length: int, least: int
) -> None:
    torch.manual_seed(0)
    encoding, factors = clex(train_length=train_length, max_factor=6), set()
    for _ in range(100):
        row = encoding.places(torch.zeros(1, 16, dtype=torch.int64), training=True)[0, 0]
        assert (row.diff() > 0).all()
        factors.add(math.ceil((int(row[-1]) + 1) / train_length))
    assert factors == {*range(least, 7)}


def test_draws_are_those_of_the_default_generator() -> None:
    tokens = torch.zeros(1, 64, dtype=torch.int64)
    rows = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        rows.append(clex().places(tokens, training=True))
    assert rows[0].equal(rows[1])
    assert not rows[0].equal(rows[2])


def test_initial_weights_are_uniform_and_zero() -> None:
    weights = clex(width=3).layer_weights(LayerSizes(2, 256, 128), torch.Generator().manual_seed(1))
    up, down = weights["up"].value, weights["down"].value
    assert (up.shape, down.shape) == ((64, 384), (384, 64))
    bound = 1 / math.sqrt(384)
    assert up.abs().max() <= bound
    assert up.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert not down.any()


def test_the_integration_is_of_fourth_order() -> None:
    def error(num_steps: int) -> float:
        value = integrated(lambda time, value: value * time.cos(), fp64(1.0), fp64(2.0), num_steps)
        return abs(float(value) - math.exp(math.sin(2.0)))

    assert error(8) / error(16) == pytest.approx(16, rel=0.3)
    assert error(16) < 1e-5


def test_the_run_fills_in_the_training_length() -> None:
    run = run_of(run_tree(model={"encoding": {"name": "clex"}}))
    assert run.model.encoding == Clex(train_length=8)
