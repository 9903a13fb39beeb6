"""The running sums that are cached beside keys and values."""

import torch

from megatron_mep.attention.key_bias import running_sum_of
from megatron_mep.model.cache import Cache


def increments(length: int = 9) -> torch.Tensor:
    return torch.rand(2, 3, length, generator=torch.Generator().manual_seed(0))


def test_sums_go_on_from_what_was_read():
    cache, whole = Cache(2, 9), increments()
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        sums = cache.sums_with(whole[..., start:stop], layer_number=1)
        torch.testing.assert_close(sums, running_sum_of(whole)[..., :stop], rtol=1e-12, atol=0)
        cache.sequence_len_offset = stop


def test_layers_keep_sums_of_their_own():
    cache = Cache(2, 9)
    cache.sums_with(increments(), layer_number=1)
    cache.sums_with(2 * increments(), layer_number=2)
    cache.sequence_len_offset = 8
    one, two = (cache.sums_with(torch.zeros(2, 3, 1), layer_number) for layer_number in (1, 2))
    torch.testing.assert_close(two, 2 * one)


def test_a_cache_that_starts_anew_forgets():
    cache = Cache(2, 9)
    cache.sums_with(increments(), layer_number=1)
    cache.reset()
    torch.testing.assert_close(cache.sums_with(increments(2), layer_number=1), running_sum_of(increments(2)))


def test_a_part_of_the_batch_has_its_own_rows():
    cache = Cache(4, 9)
    first = cache.sums_with(increments(), layer_number=1).clone()
    cache.batch_size_offset = 2
    cache.sums_with(3 * increments(), layer_number=1)
    cache.batch_size_offset, cache.sequence_len_offset = 0, 8
    torch.testing.assert_close(cache.sums_with(increments()[..., 8:], layer_number=1), first)


def test_samples_change_places_with_their_keys():
    cache = Cache(2, 9)
    sums = cache.sums_with(increments(8), layer_number=1).clone()
    cache.key_value_memory_dict[1] = (torch.zeros(9, 2, 1), torch.zeros(9, 2, 1))
    cache.swap_key_value_dict(torch.tensor([1, 0]))
    cache.sequence_len_offset = 8
    assert torch.equal(cache.sums_with(torch.zeros(2, 3, 1), layer_number=1)[..., :8], sums.flip(0))
