"""What all length tricks have in common: they name themselves, keep weights, and are refused where they cannot act."""

import pytest
import torch

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.base import Encoding, LayerSizes
from megatron_mep.encodings.rope import Rope
from megatron_mep.extrapolation import TRICKS, could_act, extrapolated
from megatron_mep.extrapolation.base import Trick
from megatron_mep.run import run_of
from tests.support.runs import run_tree

STATED = {
    "alibi_interpolation": {"factor": 4.0},
    "base": {"base": 5e5},
    "bias_clamp": {"bound": -1.0},
    "clex_scaling": {"factor": 4.0},
    "interpolation": {"factor": 4.0},
    "mesa": {"first": 2, "chunk": 4},
    "ntk": {"factor": 4.0},
    "ntk_by_parts": {"factor": 4.0},
    "yarn": {"factor": 4.0},
}
"""Of each trick, the options that it requires."""
LENGTH = 256
SIZES = LayerSizes(4, 32, 8)
EVERY = [kind(name=kind.model_fields["name"].default).resolved(LENGTH) for kind in BUILT_IN]


def trick_of(kind: type[Trick]) -> Trick:
    name = kind.model_fields["name"].default
    return kind.model_validate({"name": name} | STATED.get(name, {}))


PAIRS = [(trick_of(kind), encoding) for kind in TRICKS for encoding in EVERY if could_act(kind, encoding)]


@pytest.mark.parametrize(("trick", "encoding"), PAIRS, ids=lambda each: each.name)
def test_a_changed_encoding_has_the_weights_of_the_trained_one(trick: Trick, encoding: Encoding) -> None:
    changed = extrapolated(encoding, [trick], LENGTH)
    assert changed.name == f"{encoding.name} + {trick.name}"
    assert changed.learned == encoding.learned
    trained, declared = (each.layer_weights(SIZES, torch.Generator().manual_seed(1)) for each in (encoding, changed))
    assert declared.keys() == trained.keys()
    for name, weight in declared.items():
        assert weight.value.equal(trained[name].value)
        assert (weight.learned, weight.per_head) == (trained[name].learned, trained[name].per_head)


def test_every_trick_acts_on_something() -> None:
    assert {trick.name for trick, _ in PAIRS} == {kind.model_fields["name"].default for kind in TRICKS}


@pytest.mark.parametrize("kind", TRICKS)
def test_every_trick_says_where_it_is_from(kind: type[Trick]) -> None:
    assert "Source: " in (kind.__doc__ or "")
    assert kind.source
    assert kind.formula
    for key, field in kind.model_fields.items():
        assert key == "name" or field.description, key


def test_a_run_file_names_them_by_their_names() -> None:
    tree = run_tree(
        model={"encoding": {"name": "rope"}}, extrapolation=[{"name": "yarn", "factor": 4}, {"name": "log_n"}]
    )
    run = run_of(tree)
    assert [trick.name for trick in run.extrapolation] == ["yarn", "log_n"]
    assert run_of(run.model_dump(mode="json")) == run


def test_the_trained_encoding_stays_as_it_is() -> None:
    rope = Rope()
    before = rope.frequencies(8)
    changed = extrapolated(rope, [trick_of(kind) for kind in TRICKS if kind.model_fields["name"].default == "yarn"], 16)
    assert rope.frequencies(8).equal(before)
    assert (rope.name, rope.query_factor(torch.zeros(1))) == ("rope", None)
    assert not changed.frequencies(8).equal(before)


@pytest.mark.parametrize(
    ("encoding", "tricks", "told"),
    [
        ("alibi", ["yarn"], r"extrapolation\[0\].name = 'yarn': needs an encoding that turns pairs .*, not alibi; "
                            r"leave it out; on alibi these act: alibi_interpolation, bias_clamp, "),
        ("rope", ["bias_clamp"], "needs a bias by distance or .*, not rope; leave it out; on rope these act: base, "),
        ("rope", ["yarn", "ntk"], r"extrapolation\[1\].name = 'ntk': needs angles .* of training, not rope \+ yarn"),
        ("rope", ["interpolation", "yarn"], r"not rope \+ interpolation"),
        ("rope", ["dynamic_ntk", "interpolation"], "needs positions that no other trick has changed"),
        ("rope", ["dynamic_ntk", "rerope"], r"extrapolation\[1\].name = 'rerope'"),
        ("rope", ["log_n", "log_n"], "scores do not grow with the position already"),
        ("rope", ["mesa", "blockwise", "log_n"], r"extrapolation\[2\].name = 'log_n': .* do not grow"),
        ("rope", ["window", "bias_clamp"], r"not rope \+ window"),
        ("rope", ["window", "rerope"], r"no window counts, .*: name the window after it, not rope \+ window"),
    ],
)  # fmt: skip
def test_what_cannot_act_is_refused_and_what_can_is_named(encoding: str, tricks: list[str], told: str) -> None:
    stated = [{"name": name} | STATED.get(name, {}) for name in tricks]
    with pytest.raises(ConfigError, match=told):
        run_of(run_tree(model={"encoding": {"name": encoding}}, extrapolation=stated))


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        (
            [{"name": "yarnn", "factor": 4}],
            r"extrapolation\[0\].name = 'yarnn': is not a known choice; did you mean 'yarn'\?",
        ),
        ([{"name": "yarn"}], r"extrapolation\[0\].factor: is required; state it \(How many times"),
        ([{"name": "yarn", "factor": 4, "beta_fast": 0.5}], "beta_fast=0.5 must exceed beta_slow=1"),
        ([{"name": "yarn", "factr": 4}], "did you mean 'factor'"),
    ],
)
def test_what_is_stated_wrongly_is_told(tree: list[dict[str, object]], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        run_of(run_tree(model={"encoding": {"name": "rope"}}, extrapolation=tree))
