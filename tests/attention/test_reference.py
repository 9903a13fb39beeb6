"""The specification: dense attention, against one query at a time."""

import pytest
import torch

from megatron_mep.attention.reference import dense_attention, dense_bias, reference_attention
from megatron_mep.config.errors import ConfigError
from tests.attention.oracle import SCALE, Shape, attend_by_query, output_and_gradients, random_inputs


def attend(query, key, value, bias):
    return reference_attention(query, key, value, dense_bias(bias, query.size(2), key.size(2)), scale=SCALE)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (9, 9), (1, 9), (4, 9)])
def test_is_softmax_over_the_keys_seen(groups, queries, keys):
    inputs = random_inputs(Shape(2, 4, groups, queries, keys), torch.float64)
    actual, exact = (output_and_gradients(function, inputs) for function in (attend, attend_by_query))
    for name in exact:
        torch.testing.assert_close(actual[name], exact[name], rtol=1e-12, atol=1e-13, msg=name)


def test_without_a_bias_only_scores_count():
    query, key, value, bias, _ = random_inputs(Shape(1, 2, 2, 5, 5), torch.float64)
    actual = reference_attention(query, key, value, None, scale=SCALE)
    torch.testing.assert_close(actual, attend_by_query(query, key, value, 0 * bias), rtol=1e-12, atol=1e-13)


def test_dense_bias_stands_on_its_diagonals():
    bias = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert dense_bias(bias, 2, 3).tolist() == [[[2.0, 1.0, 1.0], [3.0, 2.0, 1.0]]]


def test_dense_backend_takes_the_bias_by_distance():
    query, key, value, bias, _ = random_inputs(Shape(2, 4, 2, 3, 5), torch.float64)
    actual = dense_attention(query, key, value, bias, scale=SCALE)
    torch.testing.assert_close(actual, attend_by_query(query, key, value, bias), rtol=1e-12, atol=1e-13)


def test_dense_backend_refuses_lengths_beyond_its_memory():
    query, key = torch.empty(2, 8, 8192, 64, device="meta"), torch.empty(2, 8, 8192, 64, device="meta")
    with pytest.raises(ConfigError, match=r"model.attention_backend = 'reference': .* 4.0 GiB.*set it to auto"):
        dense_attention(query, key, key, None, scale=SCALE)
