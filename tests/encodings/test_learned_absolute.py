"""The table of positions: its rows, what follows its end, and how many rows it has by default."""

import pytest
import torch

from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.learned_absolute import LearnedAbsolute
from megatron_mep.run import run_of
from tests.support.runs import run_tree

SIZES = LayerSizes(num_heads=2, hidden_size=6, head_size=3)


def table_of(encoding: LearnedAbsolute) -> torch.Tensor:
    weight = encoding.embedding_weights(SIZES, torch.Generator().manual_seed(1))["table"]
    assert weight.learned
    return weight.value


def test_every_position_takes_its_row_and_those_beyond_the_last_one() -> None:
    encoding = LearnedAbsolute(num_positions=5)
    table = table_of(encoding)
    added = encoding.added(torch.tensor([4.0, 0.0, 3.0, 5.0, 131_071.0]), 6, table=table)
    assert added.equal(table[[4, 0, 3, 4, 4]])


def test_the_last_row_learns_from_all_positions_beyond() -> None:
    encoding = LearnedAbsolute(num_positions=3)
    table = table_of(encoding).requires_grad_()
    encoding.added(torch.arange(7.0), 6, table=table).sum().backward()
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == [1.0, 1.0, 5.0]


def test_initial_values_have_the_stated_deviation() -> None:
    for std in (0.02, 0.5):
        table = table_of(LearnedAbsolute(num_positions=4000, init_std=std))
        # of 24000 values: a deviation of the estimate of 0.5 %
        assert table.std().item() == pytest.approx(std, rel=0.03)
        assert table.mean().item() == pytest.approx(0, abs=0.03 * std)


def test_rows_are_those_of_the_training_length_unless_stated() -> None:
    for stated, rows in (({}, 8), ({"num_positions": 9}, 9)):
        run = run_of(run_tree(model={"encoding": {"name": "learned_absolute", **stated}}))
        assert run.model.encoding == LearnedAbsolute(num_positions=rows)


def test_vectors_have_the_wider_type() -> None:
    encoding = LearnedAbsolute(num_positions=3)
    table = table_of(encoding)
    for position_type, table_type in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
        added = encoding.added(torch.arange(3, dtype=position_type), 6, table=table.to(table_type))
        assert added.dtype == torch.float64
