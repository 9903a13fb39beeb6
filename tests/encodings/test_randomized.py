"""Randomized positions: what is drawn, who is told, and which encodings may be inside."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from megatron_mep.config.errors import ConfigError
from megatron_mep.config.place import sections_under
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias, Encoding, LayerSizes, PositionBias, Rotation
from megatron_mep.encodings.bipe import BipeRope
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.learned_absolute import LearnedAbsolute
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.placement import Embedded, Placed
from megatron_mep.encodings.randomized import (
    Randomized,
    RandomizedAbsolute,
    RandomizedBias,
    RandomizedRotation,
)
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.sinusoidal import Sinusoidal
from megatron_mep.run import run_of
from tests.support.runs import run_tree

SIZES = LayerSizes(num_heads=4, hidden_size=24, head_size=6)
TOKENS = torch.zeros(3, 6, dtype=torch.int64)
KINDS = (RandomizedRotation, RandomizedBias, RandomizedAbsolute)
kinds = pytest.mark.parametrize("kind", KINDS)


def random(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(encoding: Encoding) -> dict[str, Tensor]:
    declared = encoding.layer_weights(SIZES, torch.Generator().manual_seed(1))
    return {name: weight.value for name, weight in declared.items()}


@kinds
def test_training_draws_sorted_positions_without_replacement(kind: type[Randomized]) -> None:
    torch.manual_seed(0)
    encoding = kind(train_length=6, range=20)
    count = torch.zeros(20)
    for _ in range(1000):
        places = encoding.places(TOKENS, training=True)
        assert places.shape == (1, 3, 6)
        assert places.equal(places[:, :1].expand_as(places)), "one draw for all samples"
        row = places[0, 0]
        assert (row.diff() > 0).all()
        count[row] += 1
    # each position is drawn with the probability 6 / 20: four deviations of a count of 1000 draws
    assert (count - 300).abs().max() < 4 * math.sqrt(1000 * 0.3 * 0.7)


@kinds
def test_draws_are_those_of_the_default_generator(kind: type[Randomized]) -> None:
    rows = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        rows.append(kind(train_length=6, range=200).places(TOKENS, training=True))
    assert rows[0].equal(rows[1])
    assert not rows[0].equal(rows[2])


@kinds
@pytest.mark.parametrize("evaluation", ["in_order", "sampled"])
def test_a_range_of_the_training_length_leaves_the_order(kind: type[Randomized], evaluation: str) -> None:
    encoding = kind.model_validate({"train_length": 6, "range": 6, "evaluation": evaluation})
    for training in (True, False):
        assert encoding.places(TOKENS, training).equal(torch.arange(6).expand(1, 3, 6))


@kinds
def test_evaluation_is_in_order_or_has_the_gaps_of_training(kind: type[Randomized]) -> None:
    tokens = torch.zeros(1, 20_000, dtype=torch.int64)
    assert kind(train_length=6, range=20).places(tokens, training=False)[0, 0].equal(torch.arange(20_000))
    encoding = kind(train_length=500, range=2000, evaluation="sampled")
    torch.manual_seed(0)
    row = encoding.places(tokens, training=False)[0, 0]
    torch.manual_seed(1)
    assert encoding.places(tokens, training=False)[0, 0].equal(row), "the same in every evaluation"
    gap = row.diff(prepend=torch.tensor([-1]))
    assert gap.min() == 1
    # gaps of probability p = 1/4 have the mean 1 / p and the variance (1 - p) / p^2
    assert gap.double().mean().item() == pytest.approx(4, abs=4 * math.sqrt(12 / 20_000))
    assert gap.double().var().item() == pytest.approx(12, rel=0.1)


@pytest.mark.parametrize("inner", [Rope(fraction=0.5), Rope(base=100.0)])
def test_a_rotation_turns_at_the_places(inner: Rope) -> None:
    encoding = RandomizedRotation(inner=inner, train_length=6, range=64)
    places = encoding.places(TOKENS, training=True).double()
    heads = random(6, 3, 4, 6)
    assert encoding.turned(heads, places).equal(inner.turned(heads, places[0, 0]))
    assert not encoding.turned(heads, places).equal(inner.turned(heads, torch.arange(6).double()))


@pytest.mark.parametrize("inner", [Alibi(), Fire(threshold=6.5)], ids=["by distance", "by positions"])
def test_a_bias_is_that_between_the_places(inner: Alibi | Fire) -> None:
    encoding = RandomizedBias(inner=inner, train_length=6, range=64)
    weights = weights_of(encoding)
    places = encoding.places(TOKENS, training=True)
    query, key = random(3, 4, 6, 6), random(3, 2, 6, 6, seed=1)
    scores = encoding.of_pairs(query, key, places.double(), places.double(), **weights)
    at = places[0, 0].tolist()
    for i in range(6):
        for j in range(i + 1):
            if isinstance(inner, Alibi):
                bias = inner.of_distance(torch.tensor(float(at[i] - at[j])).double(), **weights)
            else:
                pair = torch.tensor([[float(at[i])], [float(at[j])]]).double()
                bias = inner.of_positions(*pair, **weights)[:, 0, 0]
            product = torch.einsum("bhd,bhd->bh", query[:, :, i], key.repeat_interleave(2, dim=1)[:, :, j])
            torch.testing.assert_close(scores[:, :, i, j], product + bias, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("inner", [Sinusoidal(), LearnedAbsolute(num_positions=64)])
def test_vectors_are_those_of_the_places(inner: Sinusoidal | LearnedAbsolute) -> None:
    encoding = RandomizedAbsolute(inner=inner, train_length=6, range=64)
    declared = encoding.embedding_weights(SIZES, torch.Generator().manual_seed(1))
    weights = {name: weight.value for name, weight in declared.items()}
    places = encoding.places(TOKENS, training=True).double()
    assert encoding.added(places, 24, **weights).equal(inner.added(places[0, 0], 24, **weights))


@pytest.mark.parametrize(
    ("kind", "families"),
    [
        (RandomizedRotation, (Rotation,)),
        (RandomizedBias, (DistanceBias, PositionBias)),
        (RandomizedAbsolute, (Embedded,)),
    ],
)
def test_every_built_in_encoding_of_the_kind_can_be_inside(kind: type[Randomized], families: tuple[type, ...]) -> None:
    inside = {*sections_under(kind, "inner")} - {Encoding}
    assert inside == {one for one in BUILT_IN if issubclass(one, families) and not issubclass(one, Placed)}


@pytest.mark.parametrize(
    ("kind", "inner", "told"),
    [
        (RandomizedRotation, "tests.encodings.examples:Fox", "must turn queries and keys by their positions and"),
        (RandomizedBias, "tests.encodings.examples:Table", "must be a bias by distance or by positions"),
        (RandomizedAbsolute, "tests.encodings.examples:Segments", "must add vectors to embeddings and do nothing else"),
        (RandomizedBias, "tests.encodings.examples:SharedSlope", "weights of its own in every layer"),
    ],
)
def test_an_inner_encoding_of_another_kind_is_refused(kind: type[Randomized], inner: str, told: str) -> None:
    shared = {"shared_by_layers": True} if "Shared" in inner else {}
    with pytest.raises(ValidationError, match=told):
        kind.model_validate({"inner": {"name": inner, **shared}})


def test_what_cannot_be_inside_at_all_is_refused() -> None:
    for inner in (BipeRope(ends=()), Nope()):
        with pytest.raises(ValidationError):
            RandomizedRotation(inner=inner)


def test_the_run_fills_in_length_and_range_and_the_inner_encoding_knows_the_range() -> None:
    stated = {"name": "randomized_absolute", "inner": {"name": "learned_absolute"}}
    run = run_of(run_tree(model={"encoding": stated}))
    filled = RandomizedAbsolute(inner=LearnedAbsolute(num_positions=128), range=128, train_length=8)
    assert run.model.encoding == filled
    run = run_of(run_tree(model={"encoding": {**stated, "range": 50}}))
    assert run.model.encoding.inner == LearnedAbsolute(num_positions=50)


def test_a_range_shorter_than_a_sequence_is_told() -> None:
    stated = {"name": "randomized_rotation", "range": 7}
    with pytest.raises(ConfigError, match=r"model\.encoding\.range = 7: must be the training length of 8 tokens or"):
        run_of(run_tree(model={"encoding": stated}))
    run_of(run_tree(model={"encoding": {**stated, "range": 8}}))


def test_mistakes_of_the_inner_encoding_are_told() -> None:
    slopes = {"name": "mep", "kernels": [{"kernel": "gaussian", "slopes": [0.5]}]}
    with pytest.raises(ConfigError, match=r"model\.encoding\.inner\.kernels\[0\]\.slopes"):
        run_of(run_tree(model={"encoding": {"name": "randomized_bias", "inner": slopes}}))


def test_a_table_that_ends_before_the_range_is_told() -> None:
    stated = {"name": "randomized_absolute", "range": 50, "inner": {"name": "learned_absolute", "num_positions": 49}}
    with pytest.raises(ConfigError, match=r"model\.encoding\.inner\.num_positions = 49: must not be .* range of 50"):
        run_of(run_tree(model={"encoding": stated}))
    run_of(run_tree(model={"encoding": stated | {"range": 49}}))
    run_of(run_tree(model={"encoding": stated | {"inner": {"name": "learned_absolute"}}}))


def test_positions_are_told_apart_as_the_inner_vectors_tell_them() -> None:
    assert RandomizedAbsolute(inner=LearnedAbsolute(num_positions=50)).num_told_apart == 50
    assert RandomizedAbsolute().num_told_apart is None


def test_it_learns_where_the_inner_encoding_does() -> None:
    assert RandomizedBias(inner=Fire()).learned
    assert not RandomizedBias().learned
