"""A model under every encoding trains, in fp32 and in bf16 with fp32 masters."""

import math
from typing import Literal

import pytest
import torch

from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import learned_encoding_weights
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.training.engine import build_engine
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.step import train_step
from tests.every_encoding.case import Case
from tests.support.distributed import joined, run
from tests.support.tiny import VOCABULARY, micro_batches_of, model_config, training_config

STEPS = 30
HEAD_SIZE = 4


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_thirty_steps_lower_the_loss_and_no_number_is_lost(case: Case, precision: Literal["fp32", "bf16"]) -> None:
    run(_train, 1, case, precision)


def _train(case: Case, precision: Literal["fp32", "bf16"]) -> None:
    here = joined()
    heads = case.heads[0]
    config = model_config(
        encoding=case.encoding, num_layers=1, num_attention_heads=heads, hidden_size=heads * HEAD_SIZE
    )
    training = training_config(steps=STEPS, precision=precision, micro_batch_size=4)
    model = build_model(config, ParallelConfig(), VOCABULARY, 3, dtype_of(precision))
    before = {name: weight.detach().clone() for name, weight in learned_encoding_weights(model).items()}
    engine = build_engine(model, training, here)
    # the same batch again and again, so that the loss must fall
    losses = [float(train_step(engine, micro_batches_of(4), range(1), here)) for _ in range(STEPS)]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.9 * losses[0]
    for name, weight in learned_encoding_weights(engine.module).items():
        assert weight.dtype == torch.float32
        assert weight.isfinite().all()
        assert not weight.equal(before[name]), f"{name} was not trained"
