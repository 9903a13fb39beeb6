"""The tolerance policy refuses what it must."""

import pytest
import torch

from tests.support.tolerance import assert_exact_equal, assert_within_budget

EPS = torch.finfo(torch.float32).eps
EXACT = torch.tensor([1.0, -4.0, 0.5], dtype=torch.float64)
PLAIN = EXACT.float() + torch.tensor([0.0, 0.0, 1e-3])
BUDGET = 2 * (1e-3 + 4 * EPS)


def test_twice_the_error_of_plain_is_within_the_budget():
    assert_within_budget(EXACT.float() + 0.99 * BUDGET, PLAIN, EXACT)


def test_more_is_over_it_and_told_where():
    actual = EXACT.float()
    actual[1] += 1.01 * BUDGET
    with pytest.raises(AssertionError, match=r"gradient of key: 1 of 3 entries .* worst at \(1,\): -3.99.*exact -4"):
        assert_within_budget(actual, PLAIN, EXACT, "gradient of key")


def test_eps_alone_is_allowed_where_plain_is_exact():
    actual = EXACT.float()
    actual[2] += 4 * EPS
    assert_within_budget(actual, EXACT.float(), EXACT)


def test_nan_is_never_within_the_budget():
    actual = EXACT.float()
    actual[2] = torch.nan
    with pytest.raises(AssertionError, match=r"worst at \(2,\): nan"):
        assert_within_budget(actual, PLAIN, EXACT)


@pytest.mark.parametrize(
    ("actual", "exact", "told"),
    [
        (EXACT.float(), EXACT.float(), "the oracle answers in torch.float32"),
        (EXACT.float(), EXACT / 0, "not finite"),
        (EXACT.bfloat16(), EXACT, "is torch.bfloat16, plain PyTorch gives torch.float32"),
        (EXACT.float()[:, None], EXACT, "3, 1"),
    ],
)
def test_what_cannot_be_compared_is_told(actual, exact, told):
    with pytest.raises(AssertionError, match=told):
        assert_within_budget(actual, PLAIN, exact)


def test_exact_equality_is_of_every_number():
    assert_exact_equal(PLAIN, PLAIN.clone())
    changed = PLAIN.clone()
    changed[1] += 4 * EPS
    with pytest.raises(AssertionError, match=r"1 of 3 entries differ; first at \(1,\)"):
        assert_exact_equal(changed, PLAIN)


@pytest.mark.parametrize("other", [PLAIN.double(), PLAIN[:2], PLAIN[:, None]])
def test_exact_equality_is_of_type_and_shape(other):
    with pytest.raises(AssertionError, match="expected"):
        assert_exact_equal(other, PLAIN)
