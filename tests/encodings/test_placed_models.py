"""Models whose encodings place tokens, where these come down to encodings that do not."""

import pytest
import torch
from torch import Tensor

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.bipe import BipeAlibi, BipeRope
from megatron_mep.encodings.clex import Clex
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.fope import Fope
from megatron_mep.encodings.hirope import Hirope
from megatron_mep.encodings.learned_absolute import LearnedAbsolute
from megatron_mep.encodings.randomized import RandomizedAbsolute, RandomizedBias, RandomizedRotation
from megatron_mep.encodings.rope import Rope
from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from tests.support.distributed import joined, run
from tests.support.tiny import SEQ_LENGTH, VOCABULARY, model_config, samples

TABLE = LearnedAbsolute(num_positions=SEQ_LENGTH)
WHOLE = {"train_length": SEQ_LENGTH, "range": SEQ_LENGTH}

LIMITS: dict[str, tuple[Encoding, Encoding]] = {
    "one segment, turned by": (BipeRope(ends=(), num_positions=SEQ_LENGTH), TABLE),
    "one segment, biased by": (BipeAlibi(ends=(), num_positions=SEQ_LENGTH), TABLE),
    "segments of one token": (Hirope(segment_length=1, window=0), Rope()),
    "no longer than in training": (Clex(train_length=SEQ_LENGTH, max_factor=1), Rope()),
    "a rotation without choice": (RandomizedRotation.model_validate(WHOLE), Rope()),
    "heads turned apart": (RandomizedRotation(inner=Fope(train_length=99), **WHOLE), Fope(train_length=99)),
    "a bias without choice": (RandomizedBias.model_validate(WHOLE), Alibi()),
    "a bias by positions without choice": (RandomizedBias(inner=Fire(threshold=6.5), **WHOLE), Fire(threshold=6.5)),
    "a table without choice": (RandomizedAbsolute(inner=TABLE, **WHOLE), TABLE),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_model_is_that_of_the_limit(name: str) -> None:
    run(_alike, 1, *LIMITS[name])


def _alike(encoding: Encoding, limit: Encoding) -> None:
    joined()
    for training in (True, False):
        found, expected = (_losses(each, training) for each in (encoding, limit))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "encoding",
    [RandomizedRotation(train_length=SEQ_LENGTH, range=999), Clex(train_length=SEQ_LENGTH)],
    ids=["randomized", "clex"],
)
def test_training_draws_and_evaluation_does_not(encoding: Encoding) -> None:
    run(_draws, 1, encoding)


def _draws(encoding: Encoding) -> None:
    joined()
    drawn = [_losses(encoding, True, seed) for seed in (1, 2, 1)]
    assert not torch.allclose(drawn[0], drawn[1])
    assert drawn[0].equal(drawn[2])
    assert _losses(encoding, False, 1).equal(_losses(encoding, False, 2))
    torch.testing.assert_close(_losses(encoding, False), _losses(Rope(), False), rtol=1e-12, atol=1e-12)


def _losses(encoding: Encoding, training: bool, seed: int = 1) -> Tensor:
    config = model_config(encoding=encoding, num_query_groups=2)
    model = build_model(config, ParallelConfig(), VOCABULARY, 3, torch.float64)
    model.double().train(training)
    tokens = samples(0, 2)
    torch.manual_seed(seed)
    losses: Tensor = model(tokens[:, :-1], None, None, labels=tokens[:, 1:]).detach()
    return losses
