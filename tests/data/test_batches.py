import resource
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed

from megatron_mep.config.errors import DataError
from megatron_mep.data.batches import TrainingBatches
from megatron_mep.data.manifest import Manifest
from tests.data.toy import corpus
from tests.support.distributed import run

SEQ_LENGTH = 32
NUM_SAMPLES = 2500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, _ = corpus(tmp_path_factory.mktemp("batches"))
    return folder


def opened(folder: Path, num_samples: int = NUM_SAMPLES, seed: int = 0, index: Path | None = None) -> TrainingBatches:
    return TrainingBatches(folder, SEQ_LENGTH, seed, num_samples, index)


def documents_of(folder: Path) -> list[tuple[int, ...]]:
    tokens = np.fromfile(folder / "train.bin", dtype=np.uint16)
    ends = np.flatnonzero(tokens == Manifest.load(folder).end_of_document)
    return [tuple(document.tolist()) for document in np.split(tokens, ends + 1)[:-1]]


def test_a_sample_is_a_run_of_whole_documents_but_for_its_ends(folder):
    documents, end = documents_of(folder), Manifest.load(folder).end_of_document
    heads = {document[:length] for document in documents for length in range(len(document))}
    tails = {document[-length:] for document in documents for length in range(1, len(document) + 1)}
    middles = {head[-SEQ_LENGTH - 1 :] for head in heads}
    for sample in opened(folder).micro_batch(0, 1024).tolist():
        ends = [place + 1 for place, token in enumerate(sample) if token == end]
        pieces = [tuple(sample[start:stop]) for start, stop in zip([0, *ends], [*ends, len(sample)], strict=True)]
        if ends:
            first, *whole, last = pieces
            assert first in tails
            assert set(whole) <= set(documents)
            assert last in heads
        else:
            assert pieces[0] in middles


def test_a_round_reads_every_token_equally_often(folder):
    batches = opened(folder)
    plan, documents = batches.plan, documents_of(folder)
    seen = Counter(batches.micro_batch(0, plan.samples_per_round)[:, :-1].flatten().tolist())
    there = Counter(token for document in documents for token in document for _ in range(plan.epochs_per_round))
    assert not seen - there
    assert (there - seen).total() == plan.epochs_per_round * plan.num_tokens - plan.samples_per_round * SEQ_LENGTH
    assert 0 < (there - seen).total() <= SEQ_LENGTH


def test_samples_of_a_round_join_to_one_stream(folder):
    batches = opened(folder)
    samples = batches.micro_batch(0, batches.plan.samples_per_round)
    firsts, lasts = Counter(samples[:, 0].tolist()), Counter(samples[:, -1].tolist())
    assert (firsts - lasts).total() == (lasts - firsts).total() <= 1


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_any_number_of_ranks_makes_the_same_batch(folder, num_ranks):
    whole = opened(folder).micro_batch(40, 8)
    share = 8 // num_ranks
    shares = [opened(folder).micro_batch(40 + rank * share, share) for rank in range(num_ranks)]
    assert torch.equal(torch.cat(shares), whole)
    assert whole.shape == (8, SEQ_LENGTH + 1)
    assert whole.dtype == torch.int64


def test_a_run_resumes_anywhere(folder):
    whole = opened(folder).micro_batch(0, NUM_SAMPLES)
    for consumed in (0, 1, 1023, 1024, NUM_SAMPLES - 1):
        assert torch.equal(opened(folder).micro_batch(consumed, 1)[0], whole[consumed])


def test_a_longer_run_begins_with_the_shorter_one(folder):
    whole = opened(folder, num_samples=5000).micro_batch(0, NUM_SAMPLES)
    assert torch.equal(opened(folder, num_samples=NUM_SAMPLES).micro_batch(0, NUM_SAMPLES), whole)
    assert torch.equal(opened(folder, num_samples=10).micro_batch(0, 10), whole[:10])


def test_rounds_and_seeds_differ(folder):
    first, other = opened(folder), opened(folder, seed=1)
    per_round = first.plan.samples_per_round
    assert first.plan.num_rounds > 1
    assert not torch.equal(first.micro_batch(0, 8), first.micro_batch(per_round, 8))
    assert not torch.equal(first.micro_batch(0, 8), other.micro_batch(0, 8))
    # a seed's second round is not its neighbour's first
    assert not torch.equal(first.micro_batch(per_round, 8), other.micro_batch(0, 8))


def test_samples_beyond_the_run_are_not_there(folder):
    with pytest.raises(AssertionError, match="beyond the run"):
        opened(folder).micro_batch(NUM_SAMPLES - 1, 2)


def test_the_order_is_the_same_wherever_it_is_kept(folder, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved, ignore=shutil.ignore_patterns("index"))
    here = opened(folder).micro_batch(0, 100)
    assert torch.equal(opened(moved).micro_batch(0, 100), here)
    assert torch.equal(opened(moved, index=tmp_path / "index").micro_batch(0, 100), here)


def test_an_order_is_drawn_once_and_moves_with_its_corpus(folder, tmp_path, monkeypatch):
    opened(folder)
    shutil.copytree(folder, tmp_path / "moved")
    monkeypatch.setattr("numpy.save", None)
    opened(tmp_path / "moved")


def test_nothing_is_left_of_an_order_that_was_cut_off(folder, tmp_path, monkeypatch):
    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("numpy.save", cut)
        with pytest.raises(KeyboardInterrupt):
            opened(folder, index=tmp_path / "index")
    assert not list((tmp_path / "index").iterdir())
    assert torch.equal(opened(folder, index=tmp_path / "index").micro_batch(0, 9), opened(folder).micro_batch(0, 9))


def test_an_order_that_cannot_be_kept_is_the_users_to_place(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"data\.index_folder"):
        opened(folder, index=tmp_path / "file" / "index")


def test_a_corpus_shorter_than_a_sample_is_refused(folder):
    with pytest.raises(DataError, match="seq_length"):
        TrainingBatches(folder, 10**6, 0, 1)


def test_memory_does_not_grow_with_the_square_of_the_length(tmp_path):
    folder, _ = corpus(tmp_path, num_documents=1000)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert TrainingBatches(folder, 16_384, 0, 2).micro_batch(0, 2).shape == (2, 16_385)
    # a mask of 16384 x 16384 has 256 MiB even in booleans
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100 * 1024


def ranks_agree(folder: Path, index: Path, expected: torch.Tensor) -> None:
    assert torch.equal(opened(folder, index=index).micro_batch(0, 64), expected)


def test_ranks_that_start_together_read_the_same(folder, tmp_path):
    run(ranks_agree, 2, folder, tmp_path / "index", opened(folder).micro_batch(0, 64))


def only_rank_0_has_its_folder(folder: Path, indices: Path) -> None:
    rank = distributed.get_rank()
    if rank == 0:
        opened(folder, index=indices / "0")
    else:
        with pytest.raises(DataError, match="one folder on all nodes"):
            opened(folder, index=indices / "1")


def test_a_folder_that_nodes_do_not_share_is_noticed(folder, tmp_path):
    run(only_rank_0_has_its_folder, 2, folder, tmp_path)
