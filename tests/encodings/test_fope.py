"""FoPE's sums of waves, against loops over them, and its coefficients."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.fope import Fope
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.rotate import rotate
from megatron_mep.model.core_attention import encoded_layers
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from tests.encodings.oracle import fp64
from tests.support.distributed import joined, run
from tests.support.results import assert_alike, results_of, undivided_results
from tests.support.tiny import VOCABULARY, model_config, samples

HEADS, HEAD_SIZE = 3, 16
POSITIONS = [0, 1, 2, 63, 1000, 131_071]
SIZES = LayerSizes(HEADS, HEADS * HEAD_SIZE, HEAD_SIZE)


def weights_of(fope: Fope, sizes: LayerSizes = SIZES) -> dict[str, Tensor]:
    declared = fope.layer_weights(sizes, torch.Generator().manual_seed(4))
    return {name: weight.value for name, weight in declared.items()}


def heads(length: int, seed: int = 5) -> Tensor:
    return torch.randn(length, 2, HEADS, HEAD_SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def summed(coefficients: Tensor, wave: list[float], pair: int) -> float:
    return math.fsum(part * float(coefficients[index, pair]) for index, part in enumerate(wave))


@pytest.mark.parametrize(("padding", "fill"), [("published", 1.0), ("still", 0.0)])
def test_pairs_turn_by_sums_of_the_waves_that_fit(padding: str, fill: float):
    fope = Fope.model_validate({"train_length": 512, "padding": padding})
    weights, vectors = weights_of(fope), heads(len(POSITIONS))
    frequencies = [10_000 ** (-2 * m / HEAD_SIZE) for m in range(8)]
    kept = [frequency for frequency in frequencies if frequency >= 2 * math.pi / 512]
    assert (len(kept), weights["cos"].shape) == (4, (HEADS, 4, 4))
    ours = fope.turned(vectors, fp64(POSITIONS), **weights)
    for place, position in enumerate(POSITIONS):
        cosines, sines = ([wave(position * each) for each in kept] for wave in (math.cos, math.sin))
        for head in range(HEADS):
            for pair in range(8):
                cos = summed(weights["cos"][head], cosines, pair) if pair < 4 else 1.0
                sin = summed(weights["sin"][head], sines, pair) if pair < 4 else fill
                first, second = vectors[place, 0, head, [pair, pair + 8]].tolist()
                expected = fp64([first * cos - second * sin, second * cos + first * sin])
                # a position times a frequency has an error of 10^-11
                torch.testing.assert_close(ours[place, 0, head, [pair, pair + 8]], expected, rtol=0, atol=1e-9)


def test_it_is_rope_without_noise_and_with_every_wave():
    fope = Fope(train_length=10**6, gain=0.0, fraction=1.0)
    vectors, position = heads(len(POSITIONS)), fp64(POSITIONS)
    ours = fope.turned(vectors, position, **weights_of(fope))
    torch.testing.assert_close(ours, Rope().turned(vectors, position), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("num_waves", "num_turning", "train_length", "chosen"),
    [(4, 4, 512, [0, 1, 2, 3]), (6, 4, 4096, [0, 2, 4]), (8, 4, 10**6, [0, 2, 4, 6])],
)
def test_more_waves_than_pairs_are_thinned_out(num_waves: int, num_turning: int, train_length: int, chosen: list[int]):
    weights = weights_of(Fope(train_length=train_length, gain=0.0))
    for name in ("sin", "cos"):
        expected = torch.zeros(HEADS, num_waves, num_turning)
        for pair, wave in enumerate(chosen):
            expected[:, wave, pair] = 1
        assert weights[name].equal(expected)


def test_noise_has_the_deviation_of_the_released_code():
    """Xavier's normal rule on [H, waves, turning]: its fans are the dims 1 and 0, times dim 2."""
    sizes = LayerSizes(num_heads=16, hidden_size=16 * 128, head_size=128)
    fope, still = (Fope(train_length=10**6, gain=gain) for gain in (0.6, 0.0))
    noise = weights_of(fope, sizes)["cos"] - weights_of(still, sizes)["cos"]
    assert noise.shape == (16, 64, 32)
    expected = 0.6 * math.sqrt(2 / (32 * 64 + 32 * 16))
    torch.testing.assert_close(noise.std(), torch.tensor(expected), rtol=0.02, atol=0)
    torch.testing.assert_close(noise.mean(), torch.tensor(0.0), rtol=0, atol=expected / 50)


def test_coefficients_differ_between_heads_and_waves_and_are_constant():
    declared = Fope(train_length=512).layer_weights(SIZES, torch.Generator().manual_seed(4))
    assert not Fope(train_length=512).learned
    assert all(weight.per_head and not weight.learned for weight in declared.values())
    sin, cos = declared["sin"].value, declared["cos"].value
    assert not torch.equal(sin, cos)
    assert not torch.equal(cos[0], cos[1])


def test_published_padding_doubles_the_scores_of_pairs_that_do_not_turn():
    vectors, position = heads(2), fp64([3, 900])
    scores = {}
    for padding in ("published", "still"):
        fope = Fope.model_validate({"train_length": 7, "padding": padding})
        query, key = fope.turned(vectors, position, **weights_of(fope))
        scores[padding] = (query * key).unflatten(-1, (2, 8)).sum(-2)
    torch.testing.assert_close(scores["published"][..., 1:], 2 * scores["still"][..., 1:], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scores["published"][..., :1], scores["still"][..., :1], rtol=1e-12, atol=1e-12)


def test_places_of_each_sample_turn_as_the_same_places_of_all():
    fope, vectors = Fope(train_length=512), heads(4)
    position = fp64([[0, 1, 2, 3], [7, 9, 11, 20]])
    both = fope.turned(vectors, position, **weights_of(fope))
    for sample in range(2):
        alone = fope.turned(vectors, position[sample], **weights_of(fope))
        torch.testing.assert_close(both[:, sample], alone[:, sample], rtol=1e-12, atol=1e-12)


def test_fp32_is_as_exact_far_off_as_near():
    fope, vectors = Fope(train_length=512), heads(len(POSITIONS))
    exact = fope.turned(vectors, fp64(POSITIONS), **weights_of(fope))
    rounded = fope.turned(vectors.float(), torch.tensor(POSITIONS).float(), **weights_of(fope))
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=1e-5)


def test_angles_are_those_of_the_waves():
    angle, rope = (kind.angles(fp64(POSITIONS), HEAD_SIZE) for kind in (Fope(train_length=512), Rope()))
    assert angle[:, :4].equal(rope[:, :4])
    assert not angle[:, 4:].any()
    assert not torch.allclose(
        rotate(heads(6), angle),
        Fope(train_length=512).turned(heads(6), fp64(POSITIONS), **weights_of(Fope(train_length=512))),
    )


def test_what_turns_nothing_is_told():
    (short,) = Fope().resolved(6).mistakes(SIZES)
    (thin,) = Fope(train_length=512, fraction=0.05).mistakes(SIZES)
    assert (short.key, thin.key, thin.remedy) == ("train_length", "fraction", "set it to 0.12 or more")
    assert Fope(fraction=0.12).resolved(512) == Fope(fraction=0.12, train_length=512)
    assert not Fope(fraction=0.12).resolved(512).mistakes(SIZES)


@pytest.mark.parametrize(
    "encoding", [{"name": "fope", "train_length": 512}, {"name": "lrpe", "vector_of_each_head": True}]
)
def test_heads_that_turn_apart_share_keys_at_every_tensor_size(encoding: dict[str, object], tmp_path):
    expected = tmp_path / "expected.pt"
    run(_grouped, 1, encoding, expected)
    run(_grouped, 2, encoding, expected)


def _grouped(encoding, file):
    tensor = torch.distributed.get_world_size()
    here = joined(tensor=tensor)
    config = model_config(encoding=encoding, num_query_groups=2)
    model = build_model(config, ParallelConfig(tensor=tensor), VOCABULARY, seed=3)
    if tensor == 1:
        torch.save(undivided_results(model, here.tensor_group), file)
    else:
        assert_alike("2 tensor ranks", results_of(model, here.tensor_group), *torch.load(file))


def test_a_bound_of_the_scores_is_not_told_where_lengths_change():
    run(_bounds, 1)


def _bounds():
    joined()
    assert all(_bounds_told({"name": "rope"}))
    assert not any(_bounds_told({"name": "fope", "train_length": 512}))


def _bounds_told(encoding) -> list[bool]:
    """For each layer, whether its backend is told a bound."""
    model = build_model(model_config(encoding=encoding, qk_norm=True), ParallelConfig(), VOCABULARY, seed=3).eval()
    told = []

    def attend(*args, bound=None, plain, **options):
        told.append(bound is not None)
        return plain(*args, **options)

    for layer in encoded_layers(model):
        backend = layer.evaluation_backend
        layer.evaluation_backend = replace(backend, attend=partial(attend, plain=backend.attend), takes_bound=True)
    model(samples(0, 1), None, None)
    assert len(told) == 2
    return told
