import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.data.plan import Plan, plan_of
from tests.data.toy import corpus


def test_a_large_corpus_is_shuffled_within_an_epoch():
    plan = Plan(num_documents=10, num_tokens=1_000_001, seq_length=100, num_samples=25_000)
    assert (plan.epochs_per_round, plan.samples_per_round, plan.num_rounds) == (1, 10_000, 3)
    assert plan.num_epochs == pytest.approx(2.5, rel=1e-5)


def test_a_small_corpus_is_shuffled_over_several_epochs():
    plan = Plan(num_documents=10, num_tokens=1_001, seq_length=100, num_samples=1)
    assert plan.epochs_per_round == 103
    assert plan.samples_per_round == (103 * 1_001 - 1) // 100
    assert plan.samples_per_round >= 1024


def test_the_shuffle_does_not_depend_on_the_length_of_the_run():
    long, short = (Plan(10, 12_345, 64, num_samples) for num_samples in (10**6, 1))
    assert long.epochs_per_round == short.epochs_per_round
    assert long.samples_per_round == short.samples_per_round


def test_a_sample_must_fit_the_corpus(tmp_path):
    _, manifest = corpus(tmp_path, num_documents=60)
    longest = manifest.train.num_tokens - 1
    assert plan_of(manifest, longest, 1).samples_per_round >= 1
    with pytest.raises(DataError, match="must be less than"):
        plan_of(manifest, longest + 1, 1)
