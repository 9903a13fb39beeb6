"""Mesa-Extrapolation, pair by pair."""

import math
import re

import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.extrapolation import extrapolated
from megatron_mep.extrapolation.log_n import LogN
from megatron_mep.extrapolation.mesa import Mesa
from megatron_mep.extrapolation.yarn import Yarn
from tests.encodings.examples import Fire
from tests.extrapolation.pairs import LENGTH, Seen, assert_scores, expected_scores, product, scores_of
from tests.support.tolerance import assert_exact_equal

TRAIN_LENGTH = 16


def chunk_starts(first: int, chunk: int, length: int) -> list[int]:
    return [0, *range(first, length, chunk)]


def in_chunks(first: int, chunk: int, push_width: int, recent: int, length: int) -> Seen:
    """By walking over the chunks of a sequence, as the published code runs the model over them."""
    starts = chunk_starts(first, chunk, length)

    def seen(i: int, j: int) -> float | None:
        start = max(begin for begin in starts if begin <= i)
        if start == starts[-1]:
            top = start - recent
            place = j
            if j < top:
                # one step down for each `push_width` keys, counted from the top
                place = top - 1 - [step for step in range(top) for _ in range(push_width)][top - 1 - j]
            return i - place
        if j >= start:
            return i - j
        # the first chunk stands right before it
        return first + (i - start) - j if j < first else None

    return seen


def log_n(first: int, chunk: int, length: int):
    last = chunk_starts(first, chunk, length)[-1]
    return lambda i: max(1.0, math.log(i + 1) / math.log(TRAIN_LENGTH)) if i >= last else 1.0


OPTIONS = [(3, 8, 4, 0), (3, 8, 4, 2), (4, 5, 3, 4), (1, 15, 7, 0), (3, 8, 1, 0), (6, 10, 50, 6)]
options = pytest.mark.parametrize(("first", "chunk", "push_width", "recent"), OPTIONS)


@options
@pytest.mark.parametrize("length", [17, 28, 40, LENGTH])
def test_chunks_see_the_first_and_themselves_and_the_last_all_on_a_stair(first, chunk, push_width, recent, length):
    mesa = Mesa(first=first, chunk=chunk, push_width=push_width, recent=recent)
    expected = expected_scores(
        in_chunks(first, chunk, push_width, recent, length), factor=log_n(first, chunk, length), length=length
    )
    assert_scores(scores_of(mesa.applied(Rope(), TRAIN_LENGTH), length), expected)


def test_stairs_of_one_keep_all_distances_of_the_last_chunk():
    scores = scores_of(Mesa(first=3, chunk=8, push_width=1, log_n=False).applied(Rope(), TRAIN_LENGTH))
    last = chunk_starts(3, 8, LENGTH)[-1]
    assert_scores(scores[:, :, last:], expected_scores(lambda i, j: i - j)[:, :, last:])


def test_biases_follow_the_places_and_are_not_scaled():
    mesa = Mesa(first=3, chunk=8, push_width=4, recent=2).applied(Alibi(), TRAIN_LENGTH)
    expected = expected_scores(
        in_chunks(3, 8, 4, 2, LENGTH),
        product,
        bias=lambda head, distance: -(4.0 ** -(head + 1)) * distance,
        factor=log_n(3, 8, LENGTH),
    )
    assert_scores(scores_of(mesa), expected)


@pytest.mark.parametrize("length", [1, 3, 15, 16])
def test_up_to_the_training_length_nothing_changes(length):
    mesa = Mesa(first=3, chunk=4).applied(Rope(), TRAIN_LENGTH)
    assert_scores(scores_of(mesa, length), expected_scores(lambda i, j: i - j, length=length))


def test_a_decoded_query_sees_all_keys_as_the_last_of_a_whole_pass_does():
    mesa = Mesa(first=3, chunk=8, push_width=4).applied(Rope(), TRAIN_LENGTH)
    for length in range(17, LENGTH):
        alone = scores_of(mesa, length, first=length - 1)
        assert alone.isfinite().all()
        assert_scores(alone, scores_of(mesa, length)[:, :, -1:])


def test_chunks_fill_the_training_length_less_twice_the_first():
    default = Mesa(first=3).applied(Rope(), TRAIN_LENGTH)
    assert_exact_equal(scores_of(default), scores_of(Mesa(first=3, chunk=10).applied(Rope(), TRAIN_LENGTH)))
    assert Mesa().applied(Rope(), 2048).chunk == 1848


def test_no_distance_is_new_to_the_model_as_long_as_the_stair_reaches():
    """With L = C + 2 F and a full last chunk, the F positions to spare are F steps of the stair."""
    first, chunk, push_width = 3, 10, 4
    length = first + chunk + first + chunk  # the last chunk begins at F + C
    seen = in_chunks(first, chunk, push_width, 0, length)
    distances = [seen(i, j) for i in range(length) for j in range(i + 1)]
    assert max(distance for distance in distances if distance is not None) < TRAIN_LENGTH


def test_chunks_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError) as told:
        extrapolated(Rope(), [Mesa()], train_length=128)
    assert str(told.value) == (
        "extrapolation[0].first = 100: must be less than half the training length 128, which chunks are to fit "
        "beside it; set it to 6, or state chunk too"
    )
    with pytest.raises(ConfigError, match=r"chunk = 14: must fit into the training length 16 .* set it to at most 13"):
        extrapolated(Rope(), [Mesa(first=3, chunk=14)], train_length=16)
    with pytest.raises(ConfigError, match="set first below 16, and chunk to what is left"):
        extrapolated(Rope(), [Mesa(first=16, chunk=1)], train_length=16)
    for remedy in (Mesa(first=6), Mesa(first=100, chunk=28)):
        assert not remedy.mistakes(128)


@pytest.mark.parametrize("train_length", [3, 4, 19, 40, 200])
def test_the_first_chunk_that_is_told_fits(train_length):
    (mistake,) = Mesa().mistakes(train_length)
    told = re.match(r"set it to (\d+), or", mistake.remedy)
    assert told is not None
    assert not Mesa(first=int(told[1])).mistakes(train_length)


def test_of_so_few_tokens_no_chunks_are_told():
    for train_length in (1, 2):
        (mistake,) = Mesa().mistakes(train_length)
        assert mistake.remedy == "leave mesa out"
    (mistake,) = Mesa(first=1, chunk=1).mistakes(1)
    assert mistake.remedy == "leave mesa out"


def test_it_needs_an_encoding_by_distance():
    for encoding in (Rope(), Alibi(), Nope()):
        assert Mesa().against(encoding) is None
    assert "needs an encoding that turns queries and keys" in str(Mesa().against(Fire()))


def test_scores_are_not_scaled_twice():
    scaled = LogN().applied(Rope(), TRAIN_LENGTH)
    assert "log_n: false" in str(Mesa().against(scaled))
    assert Mesa(log_n=False).against(scaled) is None
    assert Mesa().against(Yarn(factor=4.0).applied(Rope(), TRAIN_LENGTH)) is None
