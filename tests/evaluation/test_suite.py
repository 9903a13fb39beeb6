"""The whole way from a toy model and a stream to measurements, against loops that redo it token by token."""

import hashlib
import math
import struct
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from torch import Tensor

from megatron_mep.config.errors import ConfigError
from megatron_mep.evaluation.config import EvaluationConfig, ValidationConfig
from megatron_mep.evaluation.perplexity import DataParallel, batches
from megatron_mep.evaluation.rows import Measurement
from megatron_mep.evaluation.suite import Progress, evaluate_lengths, validate
from tests.evaluation.toy import VOCABULARY, nll_of, score, stream_of

LENGTHS = (4, 6, 12, 24)
TOKENS = 48
LAST_K = 3
SPANS = 5
TRAIN_LENGTH = 6
STREAM = stream_of(101)
EVERY = EvaluationConfig(
    lengths=(6, 12),
    protocols=("blocks", "sliding", "last-k", "per-position"),
    tokens=TOKENS,
    stride=2,
    last_k=LAST_K,
    spans=SPANS,
)
CONFIG = EvaluationConfig(lengths=LENGTHS, tokens=TOKENS, last_k=LAST_K, spans=SPANS, batch_tokens=24)

Key = tuple[str, int, str]


def measured(config: EvaluationConfig = CONFIG, data_parallel: DataParallel | None = None) -> dict[Key, Measurement]:
    rows = evaluate_lengths(score, STREAM, config, TRAIN_LENGTH, data_parallel=data_parallel)
    return {(row.protocol, row.length, row.context): row for row in rows}


def first_of_context(protocol: str, length: int, cut: bool, position: int) -> int:
    """Where the context of a scored position begins, said once more and differently."""
    if protocol == "last-k":
        # spans of 3 tokens at the ends 24, 43, 62, 81, 100
        end = next(end for end in (24, 43, 62, 81, 100) if position <= end)
        return end - length
    block = next(start for start in range(0, TOKENS, length) if start < position <= start + length)
    if not cut:
        return block
    start = block
    while position > start + 6:
        start += 3
    return start


def scored_positions(protocol: str) -> list[int]:
    if protocol == "blocks":
        return list(range(1, 49))
    return [end - back for end in (24, 43, 62, 81, 100) for back in (2, 1, 0)]


def oracle(protocol: str, length: int, context: str) -> float:
    """The mean NLL, by loops."""
    tokens, positions = STREAM.tolist(), scored_positions(protocol)
    firsts = [first_of_context(protocol, length, context == "cut", position) for position in positions]
    return math.fsum(nll_of(tokens[a:p], tokens[p]) for a, p in zip(firsts, positions, strict=True)) / len(positions)


def test_every_measurement_equals_the_loops() -> None:
    rows = measured()
    assert set(rows) == {
        *(("blocks", length, "full") for length in LENGTHS),
        *(("blocks", length, "cut") for length in (12, 24)),
        *(("last-k", length, "full") for length in LENGTHS),
    }
    for key, row in rows.items():
        assert row.nll == oracle(*key), f"{key}: sums of eighths are exact"
        assert row.perplexity == pytest.approx(math.exp(oracle(*key)), rel=1e-12)


def test_the_hash_is_that_of_the_scored_tokens_at_every_length() -> None:
    for protocol in ("blocks", "last-k"):
        positions = scored_positions(protocol)
        ids = [int(STREAM[position]) for position in positions]
        expected = hashlib.sha256(struct.pack(f"<{2 * len(ids)}q", *positions, *ids)).hexdigest()
        hashes = {row.scored_hash for row in measured().values() if row.protocol == protocol}
        assert hashes == {expected}


def test_another_text_has_another_hash() -> None:
    changed = STREAM.copy()
    changed[30] = (changed[30] + 1) % VOCABULARY
    config = EvaluationConfig(lengths=(6,), tokens=TOKENS, protocols=("blocks",))
    (one,) = evaluate_lengths(score, STREAM, config, 6)
    (other,) = evaluate_lengths(score, changed, config, 6)
    assert one.scored_hash != other.scored_hash


@pytest.mark.parametrize("batch_tokens", [1, 7, 24, 1000])
def test_the_batch_size_changes_nothing(batch_tokens: int) -> None:
    outcomes = measured(EVERY.model_copy(update={"batch_tokens": batch_tokens}))
    for key, row in measured(EVERY).items():
        assert (outcomes[key].nll, outcomes[key].scored_hash) == (row.nll, row.scored_hash)
        assert outcomes[key].position_nll == row.position_nll


class Ranks:
    """Data-parallel ranks as threads, whose sum waits for all of them."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.ledgers: dict[int, Tensor] = {}
        self.barrier = Barrier(world, timeout=30)
        self.shapes: dict[int, list[torch.Size]] = {rank: [] for rank in range(world)}

    def run(self, rank: int) -> dict[Key, Measurement]:
        def sum_over_ranks(ledger: Tensor) -> Tensor:
            self.ledgers[rank] = ledger
            self.barrier.wait()
            total = torch.stack([self.ledgers[each] for each in range(self.world)]).sum(0)
            self.barrier.wait()
            return total

        def noted(tokens: Tensor) -> Tensor:
            self.shapes[rank].append(tokens.shape)
            return score(tokens)

        place = DataParallel(rank, self.world, sum_over_ranks)
        rows = evaluate_lengths(noted, STREAM, EVERY, TRAIN_LENGTH, data_parallel=place)
        return {(row.protocol, row.length, row.context): row for row in rows}


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_windows_and_agree_with_one(world: int) -> None:
    alone, ranks = measured(EVERY), Ranks(world)
    with ThreadPoolExecutor(world) as pool:
        outcomes = list(pool.map(ranks.run, range(world)))
    for rows in outcomes:
        assert {key: (row.nll, row.scored_hash) for key, row in rows.items()} == {
            key: (row.nll, row.scored_hash) for key, row in alone.items()
        }
    assert all(shapes == ranks.shapes[0] for shapes in ranks.shapes.values()), "equal calls on every rank"


@pytest.mark.parametrize("num_windows", range(1, 14))
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_batches_hold_every_window_once(num_windows: int, world: int, most: int) -> None:
    by_rank = [list(batches(num_windows, most, DataParallel(rank, world))) for rank in range(world)]
    counted = [window for own in by_rank for batch in own for window in batch.windows[batch.counts].tolist()]
    assert sorted(counted) == list(range(num_windows))
    assert len({len(own) for own in by_rank}) == 1
    sizes = {len(batch.windows) for own in by_rank for batch in own}
    assert len(sizes) == 1
    assert sizes.pop() <= most
    assert all(sum(batch.round_windows for batch in own) == num_windows for own in by_rank)


def test_a_model_that_overflows_is_a_row_that_says_so() -> None:
    def hopeless(tokens: Tensor) -> Tensor:
        return torch.full((tokens.shape[0], tokens.shape[1] - 1), 1e4)

    def broken(tokens: Tensor) -> Tensor:
        nll = torch.ones(tokens.shape[0], tokens.shape[1] - 1)
        nll[:, 0], nll[:, 1] = torch.inf, torch.nan
        return nll

    config = EvaluationConfig(lengths=(6,), tokens=TOKENS, protocols=("blocks",))
    (row,) = evaluate_lengths(hopeless, STREAM, config, 6)
    assert (row.nll, row.perplexity, row.non_finite) == (1e4, None, 0)
    (row,) = evaluate_lengths(broken, STREAM, config, 6)
    assert (row.nll, row.perplexity, row.bits_per_byte, row.non_finite) == (None, None, None, 16)


def test_bits_per_byte_counts_the_bytes_of_the_scored_tokens() -> None:
    token_bytes = np.arange(VOCABULARY, dtype=np.uint8)
    config = EvaluationConfig(lengths=(6,), tokens=TOKENS, protocols=("blocks",))
    (row,) = evaluate_lengths(score, STREAM, config, 6, token_bytes=token_bytes)
    num_bytes = sum(STREAM[1 : TOKENS + 1].tolist())
    assert num_bytes > 255, "more than the table's own type holds"
    assert row.scored_bytes == num_bytes
    assert row.bits_per_byte == pytest.approx(oracle("blocks", 6, "full") * TOKENS / math.log(2) / num_bytes, rel=1e-12)
    (row,) = evaluate_lengths(score, STREAM, config, 6)
    assert (row.scored_bytes, row.bits_per_byte) == (None, None)


def test_validation_finds_what_the_evaluation_finds_at_the_training_length() -> None:
    row = validate(score, STREAM, ValidationConfig(tokens=TOKENS), TRAIN_LENGTH, batch_tokens=24)
    same = measured()["blocks", TRAIN_LENGTH, "full"]
    apart = {"seconds", "tokens_per_s", "position_ends", "position_nll"}
    assert row.model_dump(exclude=apart) == same.model_dump(exclude=apart)


def test_progress_counts_forwarded_tokens_against_the_clock() -> None:
    seconds = iter(range(1000))
    heard: list[Progress] = []
    config = EvaluationConfig(lengths=(6, 12), tokens=24, protocols=("blocks",), batch_tokens=12)
    rows = list(evaluate_lengths(score, STREAM, config, 6, report=heard.append, clock=lambda: float(next(seconds))))
    # 24 tokens at 6; 24 at 12; and cut: two blocks of 12 in 3 chunks of 6
    assert [progress.done_tokens for progress in heard] == [12, 24, 36, 48, 60, 72, 84]
    assert {progress.all_tokens for progress in heard} == {84}
    assert heard[0].tokens_per_s == 12 / 2, "read at 0 s and 2 s"
    assert heard[0].left_s == (84 - 12) / 6
    assert heard[-1].left_s == 0
    assert rows[0].seconds == 3
    assert rows[0].tokens_per_s == 24 / 3


def test_a_stream_too_short_is_refused_before_anything_is_scored() -> None:
    with pytest.raises(ConfigError, match="this one has 48"):
        evaluate_lengths(score, STREAM[:48], CONFIG, TRAIN_LENGTH)


def test_a_memory_map_of_small_integers_is_a_stream(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("stream") / "tokens.bin"
    STREAM.astype(np.uint16).tofile(path)
    rows = evaluate_lengths(score, np.memmap(path, dtype=np.uint16, mode="r"), CONFIG, TRAIN_LENGTH)
    assert [row.nll for row in rows] == [row.nll for row in measured().values()]
