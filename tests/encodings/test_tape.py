"""TAPE's states and their steps from layer to layer, against complex numbers in Python's floats."""

import cmath
import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.rotate import rotate
from megatron_mep.encodings.tape import Tape
from tests.encodings.oracle import fp64
from tests.support.tolerance import assert_exact_equal

LENGTH, BATCH, HEADS, HEAD_SIZE, HIDDEN, WIDTH = 3, 2, 4, 6, 10, 5
PAIRS = HEAD_SIZE // 2
SIZES = LayerSizes(HEADS, HIDDEN, HEAD_SIZE)
ways = pytest.mark.parametrize("attended", ["scaled", "mixed"])


def random(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def states(seed: int) -> Tensor:
    return random(LENGTH, BATCH, HEADS, HEAD_SIZE, seed=seed)


def numbers(state: Tensor) -> list[complex]:
    """One token's state of one head as complex numbers."""
    return [complex(state[pair], state[PAIRS + pair]) for pair in range(PAIRS)]


def trained_weights() -> dict[str, Tensor]:
    """No weight is at its start, none is small."""
    shapes = {"mix": (HEADS, HEADS), "up": (WIDTH, HEADS), "gate": (WIDTH, HIDDEN), "down": (HEADS, WIDTH)}
    return {name: random(*shape, seed=10 + place) for place, (name, shape) in enumerate(shapes.items())}


def turned_by(states: Tensor, angles: Tensor) -> Tensor:
    """Every pair's number multiplied by exp(1j angle), `angles [D // 2]`."""
    return rotate(states, angles.expand(len(states), -1))


@pytest.mark.parametrize("base", [10_000.0, 100.0])
def test_states_start_as_the_cosines_and_sines_of_rope(base: float) -> None:
    initial = Tape(base=base).initial(fp64([0, 1, 7, 131_071]), HEAD_SIZE)
    for place, position in enumerate((0, 1, 7, 131_071)):
        for pair, number in enumerate(numbers(initial[place])):
            # the product of 10^5 has an error of 10^-11
            assert number == pytest.approx(cmath.exp(1j * position * base ** (-2 * pair / HEAD_SIZE)), abs=1e-10)


def test_states_at_the_start_turn_as_rope_to_the_last_bit() -> None:
    heads, position = states(1).float(), torch.tensor([0.0, 5.0, 131_071.0])
    initial = Tape().initial(position, HEAD_SIZE)
    assert initial.dtype == torch.float32
    ours = Tape().turned(heads, initial[:, None, None].expand_as(heads))
    assert_exact_equal(ours, rotate(heads, Rope().angles(position, HEAD_SIZE)))


def test_turning_multiplies_each_pair_by_its_number() -> None:
    heads, turning = states(1), states(2)
    ours = Tape().turned(heads, turning)
    for at in ((0, 0, 0), (2, 1, 3)):
        expected = [a * b for a, b in zip(numbers(heads[at]), numbers(turning[at]), strict=True)]
        assert numbers(ours[at]) == pytest.approx(expected, rel=1e-12)


def test_narrow_heads_turn_in_the_type_of_the_states() -> None:
    heads, turning = states(1).bfloat16(), states(2).float()
    ours = Tape().turned(heads, turning)
    assert_exact_equal(ours, Tape().turned(heads.float(), turning).bfloat16())


def stepped(tape: Tape, state: Tensor, attended: Tensor, output: Tensor, weights: dict[str, Tensor]) -> list[complex]:
    """Both steps of one token `[H, D]`, one number at a time and with all hidden values: `[H * D // 2]`."""
    mix, up, gate, down = (weights[name].tolist() for name in ("mix", "up", "gate", "down"))
    now, average = ([numbers(head) for head in each] for each in (state, attended))
    heads, hidden = range(HEADS), range(WIDTH)
    for head in heads:
        for pair in range(PAIRS):
            if tape.attended == "scaled":
                step = sum(mix[head]) * average[head][pair]
            else:
                step = sum(mix[head][other] * average[other][pair] for other in heads)
            now[head][pair] += step
    sums = [math.fsum(w * x for w, x in zip(row, output.tolist(), strict=True)) for row in gate]
    gates = [x / (1 + math.exp(-x)) for x in sums]
    inner = [[gates[w] * sum(up[w][h] * now[h][pair] for h in heads) for pair in range(PAIRS)] for w in hidden]
    return [
        now[head][pair] + sum(down[head][w] * inner[w][pair] for w in hidden) for head in heads for pair in range(PAIRS)
    ]


@ways
def test_steps_are_those_of_the_public_code(attended: str) -> None:
    tape, weights = Tape(width=WIDTH, attended=attended), trained_weights()
    now, average, output = states(1), states(2), random(LENGTH, BATCH, HIDDEN, seed=3)
    ours = tape.updated(now, average, output, **weights)
    assert ours.shape == now.shape
    for token in ((0, 0), (2, 1)):
        found = [number for head in ours[token] for number in numbers(head)]
        assert found == pytest.approx(stepped(tape, now[token], average[token], output[token], weights), rel=1e-11)


def test_the_published_scale_knows_only_the_sums_of_rows() -> None:
    now, average, output = states(1), states(2), random(LENGTH, BATCH, HIDDEN, seed=3)
    weights = trained_weights()
    turned = weights | {"mix": weights["mix"].flip(1)}
    for attended, same in (("scaled", True), ("mixed", False)):
        tape = Tape(width=WIDTH, attended=attended)
        ours, other = (tape.updated(now, average, output, **each) for each in (weights, turned))
        assert torch.allclose(ours, other, rtol=1e-12, atol=1e-13) == same


@ways
def test_turning_all_states_by_one_angle_turns_what_they_become(attended: str) -> None:
    """Equivariance: a layer and its attention, which averages states, cannot tell from where positions are counted."""
    tape, weights, output = Tape(width=WIDTH, attended=attended), trained_weights(), random(LENGTH, BATCH, HIDDEN)
    angles, now, average = fp64([0.3, -2.0, 1.1]), states(1), states(2)
    before = tape.updated(turned_by(now, angles), turned_by(average, angles), output, **weights)
    after = turned_by(tape.updated(now, average, output, **weights), angles)
    torch.testing.assert_close(before, after, rtol=1e-11, atol=1e-12)
    assert not torch.allclose(before, tape.updated(now, average, output, **weights))


def test_turning_all_states_by_one_angle_changes_no_score() -> None:
    query, key, angles = states(3), states(4), fp64([0.3, -2.0, 1.1])
    turning = states(1)

    def scores(states: Tensor) -> Tensor:
        return torch.einsum("qbhd,kbhd->bhqk", Tape().turned(query, states), Tape().turned(key, states))

    torch.testing.assert_close(scores(turned_by(turning, angles)), scores(turning), rtol=1e-11, atol=1e-12)
    one_token = torch.cat((turned_by(turning[:1], angles), turning[1:]))
    assert not torch.allclose(scores(one_token), scores(turning))


def test_counting_from_elsewhere_turns_all_states_by_one_angle() -> None:
    position, offset = fp64([0, 1, 2]), 2048
    angles = Rope().angles(fp64([offset]), HEAD_SIZE)[0]
    here, there = (Tape().initial(at, HEAD_SIZE)[:, None, None] for at in (position, position + offset))
    torch.testing.assert_close(there, turned_by(here, angles), rtol=0, atol=1e-10)


@ways
def test_weights_start_where_no_state_changes(attended: str) -> None:
    tape = Tape(attended=attended)
    declared = tape.layer_weights(SIZES, torch.Generator().manual_seed(0))
    shapes = {name: tuple(weight.value.shape) for name, weight in declared.items()}
    assert shapes == {"mix": (HEADS, HEADS), "up": (48, HEADS), "gate": (48, HIDDEN), "down": (HEADS, 48)}
    weights = {name: weight.value for name, weight in declared.items()}
    now = states(1).float()
    assert_exact_equal(tape.updated(now, states(2).float(), random(LENGTH, BATCH, HIDDEN).float(), **weights), now)
    for name in ("gate", "down"):
        assert weights[name].std().item() == pytest.approx(0.02, rel=0.15)
        wider = Tape(init_std=0.5).layer_weights(SIZES, torch.Generator().manual_seed(0))
        torch.testing.assert_close(wider[name].value, 25 * weights[name])


def test_what_rests_at_the_start_learns_one_after_the_other() -> None:
    """Behind `up` at zero, `gate` and `down` have no gradient yet; they have one as soon as it moved."""
    declared = Tape(width=WIDTH).layer_weights(SIZES, torch.Generator().manual_seed(0))
    weights = {name: weight.value.clone().requires_grad_() for name, weight in declared.items()}

    def reached() -> set[str]:
        output = random(LENGTH, BATCH, HIDDEN).float()
        changed = Tape(width=WIDTH).updated(states(1).float(), states(2).float(), output, **weights)
        gradients = torch.autograd.grad((changed * states(3)).sum(), list(weights.values()))
        return {name for name, gradient in zip(weights, gradients, strict=True) if gradient.abs().min() > 0}

    assert reached() == {"mix", "up"}
    with torch.no_grad():
        weights["up"] += 0.1
    assert reached() == set(weights)


@ways
def test_gradients_are_those_of_finite_differences(attended: str) -> None:
    tape, weights = Tape(width=WIDTH, attended=attended), trained_weights()
    given = [states(1), states(2), random(LENGTH, BATCH, HIDDEN, seed=3), *weights.values()]

    def changed(now: Tensor, average: Tensor, output: Tensor, *values: Tensor) -> Tensor:
        return tape.updated(now, average, output, **dict(zip(weights, values, strict=True)))

    assert torch.autograd.gradcheck(changed, [each.requires_grad_() for each in given], fast_mode=True)


def test_states_keep_their_type_beside_narrow_outputs() -> None:
    weights = {name: weight.float() for name, weight in trained_weights().items()}
    output = random(LENGTH, BATCH, HIDDEN).bfloat16()
    for dtype in (torch.float32, torch.float64):
        changed = Tape(width=WIDTH).updated(states(1).to(dtype), states(2).to(dtype), output, **weights)
        assert changed.dtype == dtype
        assert changed.isfinite().all()


@pytest.mark.parametrize("options", [{"base": 1.0}, {"width": 0}, {"attended": "summed"}, {"init_std": 0.0}])
def test_options_without_meaning_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Tape.model_validate(options)
