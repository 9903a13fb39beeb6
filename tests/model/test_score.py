import torch
from torch import Tensor

from megatron_mep.model.gpt import build_model
from megatron_mep.model.score import scorer, sum_over_data_ranks
from megatron_mep.parallel.config import ParallelConfig
from tests.support.distributed import joined, run
from tests.support.tiny import VOCABULARY, model_config, samples
from tests.support.tolerance import assert_exact_equal, assert_within_budget


def test_scores_are_negative_log_likelihoods_without_dropout():
    run(_scores, 2)


def _scores():
    here = joined(tensor=2)
    model = build_model(model_config(hidden_dropout=0.5), ParallelConfig(tensor=2), VOCABULARY, seed=0)
    tokens = samples(0, 3)
    score = scorer(model, here)
    scores = score(tokens)
    assert not scores.requires_grad
    assert_exact_equal(score(tokens), scores)
    with torch.no_grad():
        logits = model(tokens[:, :-1], None, None, runtime_gather_output=True)
    assert_within_budget(scores, _nll(logits, tokens), _nll(logits.double(), tokens))

    half = scorer(model.bfloat16(), here)(tokens)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, scores, rtol=0, atol=0.05)


def _nll(logits: Tensor, tokens: Tensor) -> Tensor:
    """Minus the logit of the token that came, plus the logarithm of the sum of all exponentials."""
    came = logits.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    return logits.exp().sum(dim=-1).log() - came


def test_sums_over_data_ranks_leave_the_part_as_it_is():
    run(_sums, 2)


def _sums():
    here = joined()
    part = torch.tensor([2**53, here.data_rank], dtype=torch.int64)
    assert sum_over_data_ranks(here)(part).tolist() == [2**54, 1]
    assert part.tolist() == [2**53, here.data_rank]
