from types import SimpleNamespace

import pytest
import torch

from megatron_mep.training.step import micro_batch_starts, train_step
from tests.support.tiny import training_config


def global_batch(step: int, micro_batch_size: int, data_size: int) -> list[int]:
    """The samples that all ranks see in a step of 8."""
    training = training_config(global_batch_size=8, micro_batch_size=micro_batch_size)
    return [
        start + offset
        for rank in range(data_size)
        for start in micro_batch_starts(step, training, SimpleNamespace(data_rank=rank, data_size=data_size))
        for offset in range(micro_batch_size)
    ]


@pytest.mark.parametrize("data_size", [1, 2, 4])
@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_ranks_see_each_sample_of_a_global_batch_once(micro_batch_size: int, data_size: int):
    assert sorted(global_batch(1, micro_batch_size, data_size)) == list(range(8))
    assert sorted(global_batch(3, micro_batch_size, data_size)) == list(range(16, 24))


@pytest.mark.parametrize("data_size", [1, 2, 4])
def test_ranks_take_turns_in_a_micro_batch_of_all(data_size: int):
    first_of_all = [
        micro_batch_starts(
            1,
            training_config(global_batch_size=8, micro_batch_size=2),
            SimpleNamespace(data_rank=rank, data_size=data_size),
        )[0]
        for rank in range(data_size)
    ]
    assert first_of_all == [2 * rank for rank in range(data_size)]


ALONE = SimpleNamespace(pipeline_size=1, device=torch.device("cpu"))


class Engine:
    """Takes the sum of the inputs for the loss of every token, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str | float] = []

    def train(self) -> None:
        self.told.append("train")

    def __call__(self, inputs: torch.Tensor, _position_ids: None, _mask: None, labels: torch.Tensor, first_sample: int):
        assert torch.equal(inputs + 1, labels)
        assert first_sample == inputs[0, 0]
        return inputs.sum() * torch.ones(labels.shape)

    def backward(self, loss: torch.Tensor) -> None:
        self.told.append(float(loss))

    def step(self) -> None:
        self.told.append("step")

    def was_step_applied(self) -> bool:
        return self.told[-1] == "step"


def test_micro_batches_are_averaged_into_one_update():
    engine = Engine()
    loss = train_step(engine, lambda first: torch.arange(first, first + 3)[None], range(0, 20, 10), ALONE)
    # inputs 0 + 1 and 10 + 11, each half of the batch
    assert engine.told == ["train", 0.5, 10.5, "step"]
    assert loss == 11
