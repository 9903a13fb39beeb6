"""What may be DAPE's inner bias, and what becomes of it."""

import math

import pytest
import torch
from torch import Tensor

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings import BUILT_IN
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import DistanceBias, PositionBias
from megatron_mep.encodings.dape import INNER, Dape, DapeV2
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.kerple import KerpleLog
from megatron_mep.run import run_of
from tests.encodings.content import HEADS, SIZES, random
from tests.encodings.test_dape import LENGTH, POSITION, drawn, mixed
from tests.support.runs import run_tree


class Window(DistanceBias):
    """A bias of one's own that excludes what is three tokens back or more."""

    name: str = "tests.encodings.test_dape_inner:Window"

    def of_distance(self, distance: Tensor, **weights: Tensor) -> Tensor:  # noqa: ARG002
        return torch.zeros_like(distance).masked_fill(distance > 2, -math.inf).expand(HEADS, *distance.shape)


@pytest.mark.parametrize("kernel_size", [1, 3])
def test_keys_that_the_inner_bias_excludes_stay_excluded_and_spoil_no_other(kernel_size: int) -> None:
    encoding = DapeV2(inner=Window(), width=5, kernel_size=kernel_size)
    weights = {name: weight.requires_grad_() for name, weight in drawn(encoding).items()}
    scores = random(2, HEADS, LENGTH, LENGTH)
    new = mixed(encoding, weights, scores)
    distance = POSITION[:, None] - POSITION
    assert new[..., distance > 2].isneginf().all()
    assert new[..., distance <= 2].isfinite().all()
    # f reads of an excluded key what it reads of one that has no bias
    plain = DapeV2(inner=Alibi(), width=5, kernel_size=kernel_size)
    flat = mixed(plain, weights | {f"{INNER}slope": torch.zeros(HEADS).double()}, scores)
    torch.testing.assert_close(new[..., distance <= 2], flat[..., distance <= 2], rtol=1e-12, atol=1e-12)
    new.softmax(-1).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in weights.values())


def test_the_inner_bias_keeps_its_weights_under_a_name_of_their_own() -> None:
    generator = torch.Generator().manual_seed(3)
    inner = KerpleLog().layer_weights(SIZES, generator)
    declared = Dape().layer_weights(SIZES, torch.Generator().manual_seed(3))
    for name, weight in inner.items():
        assert declared[f"{INNER}{name}"].value.equal(weight.value)
        assert declared[f"{INNER}{name}"].learned == weight.learned


def told(**encoding: object) -> str:
    with pytest.raises(ConfigError) as caught:
        run_of(run_tree(model={"encoding": encoding}))
    return str(caught.value)


def test_an_inner_encoding_of_another_kind_is_refused_with_what_is_usable() -> None:
    text = told(name="dape", inner={"name": "rope"})
    assert text.startswith("model.encoding.inner.name = 'rope': is not a known choice; ")
    assert all(name in text for name in ("alibi", "fire", "kerple_log", "mep", "module:Class"))
    own = told(name="dape_v2", inner={"name": "tests.encodings.examples:Segments"})
    assert "must be a bias by distance or by positions, which tests.encodings.examples:Segments is not" in own


def test_every_bias_of_ours_may_be_the_inner_one() -> None:
    for kind in BUILT_IN:
        if issubclass(kind, DistanceBias | PositionBias):
            name = kind.model_fields["name"].default
            dape = Dape.model_validate({"name": "dape", "inner": {"name": name}})
            assert type(dape.inner) is kind, f"{name} belongs in the union of biases"


def test_the_inner_biass_mistakes_are_told_where_they_stand() -> None:
    kernels = [{"kernel": "exponential", "slopes": [0.5, 0.25]}]
    text = told(name="dape", inner={"name": "mep", "kernels": kernels})
    assert text.startswith("model.encoding.inner.kernels[0].slopes = [0.5, 0.25]: needs one slope for each")
    assert Dape.model_validate({"inner": {"name": "mep", "kernels": kernels}}).learned


def test_what_cannot_be_is_refused() -> None:
    shared = told(name="dape", inner={"name": "kerple_log", "shared_by_layers": True})
    assert "must have weights of its own in every layer; leave shared_by_layers of kerple_log out" in shared
    even = told(name="dape_v2", kernel_size=4)
    assert even == "model.encoding.kernel_size = 4: must be odd, so that as many keys are read on either side; try 3"
    with pytest.raises(ConfigError, match=r"parallel\.tensor = 2: must be 1 under dape_v2, which mixes the scores"):
        run_of(run_tree(model={"encoding": {"name": "dape_v2"}}, parallel={"tensor": 2}))


def test_what_the_inner_bias_leaves_open_is_filled_in() -> None:
    assert DapeV2(inner=Fire()).resolved(64) == DapeV2(inner=Fire().resolved(64))
    assert DapeV2(inner=Fire()).reading([b"a"]) == DapeV2(inner=Fire().reading([b"a"]))
    assert Dape().query_factor(POSITION) is None
