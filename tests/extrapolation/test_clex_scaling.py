import pytest
import torch
from torch import Tensor

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.clex import Clex
from megatron_mep.encodings.rope import Rope
from megatron_mep.extrapolation import extrapolated
from megatron_mep.extrapolation.clex_scaling import ClexScaling

TRAIN_LENGTH, HEAD_SIZE = 8, 6
CLEX = Clex(train_length=TRAIN_LENGTH)


def weights() -> dict[str, Tensor]:
    declared = CLEX.layer_weights(LayerSizes(2, 12, HEAD_SIZE), torch.Generator().manual_seed(0))
    return {"up": declared["up"].value, "down": 0.1 * torch.randn(declared["down"].value.shape)}


def angles(encoding: Clex, length: int, network: dict[str, Tensor]) -> Tensor:
    return encoding.angles(torch.arange(length).double(), HEAD_SIZE, **network)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_sequence_of_that_many_training_lengths_is_turned_as_ever(factor: int) -> None:
    network = weights()
    fixed = ClexScaling(factor=factor).applied(CLEX, TRAIN_LENGTH)
    length = factor * TRAIN_LENGTH
    assert angles(fixed, length, network).equal(angles(CLEX, length, network))
    # a shorter one is the beginning of it, which it is not where t follows the length
    assert angles(fixed, 5, network).equal(angles(CLEX, length, network)[:5])
    assert factor == 1 or not angles(CLEX, 5, network).equal(angles(CLEX, length, network)[:5])


def test_it_keeps_the_weights_and_tells_its_name() -> None:
    fixed = ClexScaling(factor=4).applied(CLEX, TRAIN_LENGTH)
    assert fixed.name == "clex + clex_scaling"
    sizes = LayerSizes(2, 12, HEAD_SIZE)
    before, after = (each.layer_weights(sizes, torch.Generator()) for each in (CLEX, fixed))
    assert {name: weight.value.shape for name, weight in before.items()} == {
        name: weight.value.shape for name, weight in after.items()
    }


def test_other_encodings_have_learned_no_frequencies() -> None:
    with pytest.raises(ConfigError, match="needs the encoding clex"):
        extrapolated(Rope(), [ClexScaling(factor=2)], TRAIN_LENGTH)
