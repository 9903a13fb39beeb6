"""What the kinds of encoding promise, shown on one small encoding of each."""

from functools import partial

import pytest
import torch
from torch import Tensor

from megatron_mep.attention.key_bias import key_bias_attention, running_sum_of
from megatron_mep.attention.position_bias import position_bias_attention
from megatron_mep.attention.score_mix import score_mix_attention
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding, KeyBias, LayerSizes, PositionBias, ScoreMix
from tests.encodings.examples import Cable, Cope, Dape, Fire, Fox
from tests.support.tolerance import assert_exact_equal

HEADS, HIDDEN, HEAD_SIZE, LENGTH = 4, 12, 6, 17
SIZES = LayerSizes(HEADS, HIDDEN, HEAD_SIZE)
ALL = (Fire(), Fox(), Cable(), Cope(), Dape())
every = pytest.mark.parametrize("encoding", ALL, ids=[encoding.name for encoding in ALL])
key_biases = pytest.mark.parametrize("encoding", [Fox(), Cable()], ids=["fox", "cable"])


def weights_of(encoding: Encoding, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    declared = encoding.layer_weights(SIZES, torch.Generator().manual_seed(5))
    return {name: weight.value.to(dtype).requires_grad_(weight.learned) for name, weight in declared.items()}


def random(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def attend(encoding: Encoding, hidden: Tensor, weights: dict[str, Tensor], heads: slice = slice(None)) -> Tensor:
    """Attention over hidden states `[S, B, hidden_size]` as a layer would call it, of some heads: `[B, H, S, D]`."""
    projection = random(3, HIDDEN, HEADS * HEAD_SIZE, seed=1).to(hidden.dtype)
    query, key, value = (hidden @ each for each in projection)
    query, key, value = (
        tensor.unflatten(-1, (HEADS, HEAD_SIZE)).permute(1, 2, 0, 3)[:, heads] for tensor in (query, key, value)
    )
    if isinstance(encoding, PositionBias):
        return position_bias_attention(query, key, value, partial(encoding.of_positions, **weights), scale=0.1)
    if isinstance(encoding, KeyBias):
        sums, gain = running_sum_of(encoding.increments(hidden, **weights)), encoding.gain(hidden, **weights)
        return key_bias_attention(query, key, value, sums, gain, scale=0.1)
    assert isinstance(encoding, ScoreMix)
    return score_mix_attention(query, key, value, partial(encoding.of_scores, **weights), scale=0.1)


def test_weights_of_the_heads_alone_are_declared_as_ever():
    declared, again = Alibi().layer_weights(SIZES, torch.Generator()), Alibi().weights(HEADS, torch.Generator())
    assert_exact_equal(declared["slope"].value, again["slope"].value)


@every
def test_every_kind_knows_that_it_learns(encoding):
    assert encoding.learned
    assert not Alibi().learned


@every
def test_gradients_reach_every_learned_weight_and_are_finite(encoding):
    weights = weights_of(encoding)
    output = attend(encoding, random(LENGTH, 2, HIDDEN, dtype=torch.float32), weights)
    output.square().sum().backward()
    for name, weight in weights.items():
        if weight.requires_grad:
            assert weight.grad is not None
            assert weight.grad.isfinite().all()
            assert weight.grad.abs().max() > 0, name


@every
def test_gradients_are_those_of_finite_differences(encoding):
    weights, hidden = weights_of(encoding, torch.float64), random(9, 1, HIDDEN).requires_grad_()
    learned = {name: weight for name, weight in weights.items() if weight.requires_grad}

    def output(hidden: Tensor, *values: Tensor) -> Tensor:
        return attend(encoding, hidden, weights | dict(zip(learned, values, strict=True)))

    assert torch.autograd.gradcheck(output, (hidden, *learned.values()), fast_mode=True)


@every
def test_tokens_to_come_change_nothing(encoding):
    weights, hidden = weights_of(encoding), random(LENGTH, 2, HIDDEN, dtype=torch.float32)
    whole = attend(encoding, hidden, weights)
    for length in (1, 2, LENGTH - 1):
        alone = attend(encoding, hidden[:length], weights)
        torch.testing.assert_close(alone, whole[:, :, :length], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoding", [Fire(), Fox(), Cable(), Cope()], ids=["fire", "fox", "cable", "cope"])
@pytest.mark.parametrize("tensor_size", [2, 4])
def test_heads_of_a_rank_are_a_slice_of_the_whole_unless_heads_are_mixed(encoding, tensor_size):
    weights, hidden = weights_of(encoding, torch.float64), random(LENGTH, 2, HIDDEN)
    declared = encoding.layer_weights(SIZES, torch.Generator())
    whole = attend(encoding, hidden, weights)
    for rank in range(tensor_size):
        heads = slice(rank * HEADS // tensor_size, (rank + 1) * HEADS // tensor_size)
        own = {name: weight[heads] if declared[name].per_head else weight for name, weight in weights.items()}
        torch.testing.assert_close(attend(encoding, hidden, own, heads), whole[:, heads], rtol=1e-12, atol=1e-12)


def test_a_mix_across_heads_says_so():
    def moved(encoding: ScoreMix) -> set[int]:
        """The heads whose new scores change with the scores of head 0."""
        scores, query = random(1, HEADS, 5, 5).tril(), random(1, HEADS, 5, HEAD_SIZE, seed=1)
        position, weights = torch.arange(5).double(), weights_of(encoding, torch.float64)
        changed = scores.clone()
        changed[:, 0] += 1
        new, again = (encoding.of_scores(each, query, position, position, **weights) for each in (scores, changed))
        return {head for head in range(HEADS) if not new[:, head].equal(again[:, head])}

    assert (Cope().across_heads, moved(Cope())) == (False, {0})
    assert (Dape().across_heads, moved(Dape())) == (True, set(range(HEADS)))


@key_biases
def test_a_sum_goes_on_where_cached_keys_end(encoding):
    weights, hidden = weights_of(encoding), random(LENGTH, 2, HIDDEN, dtype=torch.float32)
    whole = running_sum_of(encoding.increments(hidden, **weights))
    assert whole.shape == (2, HEADS, LENGTH)
    before = running_sum_of(encoding.increments(hidden[:9], **weights))
    after = running_sum_of(encoding.increments(hidden[9:], **weights), before[..., -1])
    torch.testing.assert_close(torch.cat((before, after), dim=-1), whole, rtol=1e-6, atol=1e-6)


def test_a_key_bias_has_no_gain_unless_it_says_so():
    hidden = random(LENGTH, 2, HIDDEN, dtype=torch.float32)
    assert Fox().gain(hidden, **weights_of(Fox())) is None
    gain = Cable().gain(hidden, **weights_of(Cable()))
    assert gain.shape == (2, HEADS, LENGTH)


@key_biases
def test_increments_of_bf16_hidden_states_are_fp32(encoding):
    weights, hidden = weights_of(encoding), random(LENGTH, 2, HIDDEN, dtype=torch.bfloat16)
    assert encoding.increments(hidden, **weights).dtype == torch.float32


def test_fox_forgets_by_the_product_of_its_gates():
    weights, hidden = weights_of(Fox(), torch.float64), random(6, 1, HIDDEN)
    sums = running_sum_of(Fox().increments(hidden, **weights))[0]
    gates = torch.sigmoid(hidden[:, 0] @ weights["gate"].T + weights["gate_bias"])  # [S, H]
    for query in range(6):
        for key in range(query + 1):
            kept = gates[key + 1 : query + 1].prod(dim=0)
            torch.testing.assert_close((sums[:, key] - sums[:, query]).exp(), kept, rtol=1e-12, atol=0)


def test_cable_penalises_distance():
    weights, hidden = weights_of(Cable(), torch.float64), random(6, 1, HIDDEN)
    sums = running_sum_of(Cable().increments(hidden, **weights))[0]
    gain = Cable().gain(hidden, **weights)[0]
    decay = (hidden[:, 0] @ weights["decay"].T).clamp(min=0)
    strength = torch.log(1 + torch.exp(hidden[:, 0] @ weights["strength"].T))
    for query in range(6):
        for key in range(query + 1):
            expected = -strength[query] * decay[key + 1 : query + 1].sum(dim=0)
            actual = gain[:, query] * (sums[:, key] - sums[:, query])
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def test_fire_is_by_distance_up_to_its_threshold_alone():
    fire, weights = Fire(threshold=8.5), weights_of(Fire(), torch.float64)
    position = torch.arange(12).double()
    bias = fire.of_positions(position, position, **weights)
    within, beyond = bias[:, 5, 2], bias[:, 11, 8]
    torch.testing.assert_close(bias[:, 8, 5], within, rtol=1e-12, atol=1e-12)
    assert (within - beyond).abs().max() > 1e-3


def test_fire_is_finite_for_keys_in_the_future():
    weights = weights_of(Fire())
    position = torch.arange(12.0)
    bias = Fire().of_positions(position[:3], position, **weights)
    assert bias.isfinite().all()
    gradients = torch.autograd.grad(bias.sum(), list(weights.values()), allow_unused=True, materialize_grads=True)
    assert all(gradient.isfinite().all() for gradient in gradients)
