"""What `mep check` tells of the layout, and of the balance of tensor ranks."""

import re
from typing import Any

import pytest

from megatron_mep.check import describe
from megatron_mep.run import run_of
from tests.support.runs import run_tree


def balance(encoding: dict[str, Any], tensor: int = 2, epsilon: float = 1e-6, **parallel: Any) -> str | None:
    """The line on the balance of a run at 1,024 tokens, evaluated up to 8,192, with 8 heads of 64 dimensions."""
    model = {"hidden_size": 512, "num_attention_heads": 8, "encoding": encoding, "attention_epsilon": epsilon}
    training, evaluation = {"seq_length": 1024}, {"lengths": [1024, 8192]}
    layout = {"tensor": tensor, **parallel}
    run = run_of(run_tree(model=model, parallel=layout, training=training, evaluation=evaluation))
    found = re.search(r"^tensor (?:x context )?balance +(.*)$", describe(run), flags=re.MULTILINE)
    return found and found[1]


def test_shares_of_a_sequence_are_told():
    layout = {"tensor": 2, "sequence": True, "context": 2, "context_exchange": "ring"}
    told = describe(run_of(run_tree(parallel=layout)), 8)
    assert re.search(r"^world size +8 = tensor 2, sequence parallel x context 2 by ring x data 2$", told, re.MULTILINE)
    assert re.search(r"^tokens per rank +4 of each sequence's 8, in 2 chunks$", told, re.MULTILINE)
    assert re.search(r"^attention on cpu +mep in every layer by ring: ", told, re.MULTILINE)


def test_stages_are_told_with_what_they_wait_for():
    layout, model = {"pipeline": 2, "tensor": 2}, {"num_layers": 4}
    told = describe(run_of(run_tree(parallel=layout, model=model, training={"global_batch_size": 6})), 8)
    assert re.search(r"^world size +8 = tensor 2 x pipeline 2 x data 2$", told, re.MULTILINE)
    line = re.search(r"^pipeline +(.*)$", told, re.MULTILINE)
    assert line is not None
    waits = "wait for (p-1)/(vm+p-1) = 25.0% of a step (p=2, v=1, m=3)"
    assert line[1] == f"2 stages of 2 layers by 1F1B, which {waits}"


def test_idle_tensor_ranks_are_told_with_the_order_that_evens_them():
    assert balance({"name": "mep"}) == (
        "rank work max/mean 1.47 at 1,024 tokens, 1.83 at 8,192 tokens "
        "(windows at epsilon 1e-06, taking |scores| <= 8); model.encoding.order=balanced gives 1.03, 1.06"
    )


def test_context_ranks_have_different_heads_under_ulysses():
    """As many ranks with as many heads each, whichever axis they are on."""
    told = balance({"name": "mep"}, tensor=1, context=2, context_exchange="ulysses")
    assert told == balance({"name": "mep"})
    assert balance({"name": "mep"}, context=2, context_exchange="ulysses") == balance({"name": "mep"}, tensor=4)
    assert balance({"name": "mep"}, tensor=1, context=2) is None


def test_a_balanced_order_is_not_proposed_again():
    told = balance({"name": "alibi", "order": "balanced"})
    assert told is not None
    assert told.endswith("(windows at epsilon 1e-06, taking |scores| <= 8)")


def test_it_is_not_proposed_where_it_helps_nothing():
    stated = [2.0**-head for head in range(1, 9)]
    told = balance({"name": "mep", "kernels": [{"kernel": "exponential", "slopes": stated}]})
    assert told is not None
    assert "balanced" not in told


@pytest.mark.parametrize(
    "run",
    [
        {"encoding": {"name": "mep"}, "tensor": 1},
        {"encoding": {"name": "mep"}, "epsilon": 0.0},
        {"encoding": {"name": "rope"}},
        {"encoding": {"name": "mep", "kernels": [{"kernel": "log"}]}},
    ],
    ids=["one rank", "nothing skipped", "no bias", "long windows"],
)
def test_nothing_is_told_where_ranks_work_alike(run: dict[str, Any]):
    assert balance(**run) is None
