"""Scores that grow with log n, against the formula in Python's floats."""

import math

import pytest
import torch

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.bipe import BipeRope
from megatron_mep.encodings.clex import Clex
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.extrapolation import extrapolated
from megatron_mep.extrapolation.log_n import LogN
from megatron_mep.extrapolation.mesa import Mesa
from megatron_mep.extrapolation.yarn import Yarn

LENGTH = 16
POSITIONS = [0, 1, 14, 15, 16, 17, 63, 131_071]


@pytest.mark.parametrize("encoding", [Rope(), Alibi(), Nope()])
def test_the_factor_is_one_up_to_the_training_length_and_log_n_over_log_l_beyond(encoding):
    factor = LogN().applied(encoding, LENGTH).query_factor(torch.tensor(POSITIONS, dtype=torch.float64))
    expected = [max(1.0, math.log(position + 1) / math.log(LENGTH)) for position in POSITIONS]
    torch.testing.assert_close(factor, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert factor[:4].eq(1).all()
    assert factor[4] > 1


def test_yarns_factor_is_multiplied():
    both = extrapolated(Rope(), [Yarn(factor=4), LogN()], LENGTH)
    factor = both.query_factor(torch.tensor([3.0, 255.0]))
    yarn = (0.1 * math.log(4) + 1) ** 2
    assert factor.tolist() == pytest.approx([yarn, 2 * yarn], rel=1e-6)
    assert both.name == "rope + yarn + log_n"
    assert both.frequencies(8).equal(Yarn(factor=4).applied(Rope(), LENGTH).frequencies(8))


def test_a_training_length_of_one_token_is_no_division_by_zero():
    factor = LogN().applied(Rope(), 1).query_factor(torch.tensor([0.0, 1.0, 7.0]))
    assert factor.tolist() == pytest.approx([1, 1, 3])


def test_scores_do_not_grow_twice():
    grown = LogN().applied(Rope(), LENGTH)
    rule = "needs an encoding under which scores do not grow with the position already"
    assert LogN().against(grown) == rule
    assert LogN().against(Yarn(factor=4).applied(Rope(), LENGTH)) is None


@pytest.mark.parametrize("encoding", [BipeRope(), Clex()])
def test_positions_that_count_no_tokens_are_refused(encoding):
    assert LogN().against(encoding) == "needs an encoding whose positions count tokens"


def test_scores_that_mesa_scales_are_not_scaled_again() -> None:
    with pytest.raises(ConfigError, match="do not grow with the position already"):
        extrapolated(Rope(), [Mesa(), LogN()], 1024)
    assert extrapolated(Rope(), [Mesa(log_n=False), LogN()], 1024).name == "rope + mesa + log_n"
