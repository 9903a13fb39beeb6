import json
import math
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from megatron_mep.attention.flex import FlexAttention, Kernel
from megatron_mep.attention.native import why_absent
from megatron_mep.attention.reference import dense_bias, reference_attention
from tests.support import distributed
from tests.support.tolerance import assert_within_budget
from tools.bench_attention import memory
from tools.bench_attention.__main__ import main
from tools.bench_attention.contenders import BASELINE, NAMES, Contender, Flex, contenders, program
from tools.bench_attention.problem import CASES, Case, Inputs, Shape, inputs_of, mep_bias
from tools.bench_attention.races import planned
from tools.bench_attention.table import LeftOut, Row, left_out_lines, line
from tools.bench_attention.timing import race

SHAPE = Shape(batch=1, heads=4, groups=2, length=450, head_size=16)
"""Long enough for keys to be left out."""
UNNOTICED = 1e-9
"""An epsilon below the rounding of fp32."""


def run_main(*arguments: str) -> None:
    """In a forked process that may fork others: measuring starts threads and Megatron's groups."""
    process = multiprocessing.get_context("fork").Process(target=main, args=(arguments,))
    process.start()
    process.join()
    assert process.exitcode == 0


def results(attend: Callable[[Inputs], Tensor], inputs: Inputs, case: Case, learned: bool) -> tuple[Tensor, ...]:
    leaves = inputs.leaves(case, learned)
    output = attend(leaves)
    if case == "forward":
        return (output,)
    return torch.autograd.grad(output, tuple(leaves.wanting_gradients()), leaves.grad_output)


def exact_attention(inputs: Inputs) -> Tensor:
    query, key, value, bias, _ = inputs
    length = query.size(2)
    key, value = (tensor[:, torch.arange(query.size(1)) // 2] for tensor in (key, value))
    distance = torch.arange(length)[:, None] - torch.arange(length)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / 4 + bias[:, distance.abs()]
    weights = torch.where(distance >= 0, scores, -torch.inf).softmax(3)
    return torch.einsum("bhqk,bhkd->bhqd", weights, value)


def plain_attention(inputs: Inputs) -> Tensor:
    length = inputs.query.size(2)
    return reference_attention(*inputs[:3], dense_bias(inputs.bias, length, length), scale=0.25)


def assert_correct(contender: Contender, shape: Shape, case: Case, unbiased: bool = False) -> None:
    inputs = inputs_of(shape)
    actual = program(contender, inputs, case)()
    if unbiased:
        inputs = inputs._replace(bias=torch.zeros_like(inputs.bias))
    plain = results(plain_attention, inputs, case, contender.learned)
    exact = results(exact_attention, Inputs(*(tensor.double() for tensor in inputs)), case, contender.learned)
    for index, tensors in enumerate(zip(actual, plain, exact, strict=True)):
        assert_within_budget(*tensors, f"{contender.name}, {case}, {shape.layout}, result {index}")


def all_are_correct(rank_shapes: list[Shape]) -> None:
    for shape in rank_shapes:
        for case in CASES:
            assert_correct(BASELINE, shape, case, unbiased=True)
            able = [each for each in contenders("cpu", UNNOTICED, flex=False) if each.refusal(shape, case) is None]
            names = {each.name.removesuffix("-learned") for each in able}
            built = set() if why_absent() else {"compiled", "compiled-epsilon"}
            assert names == {"toeplitz", "epsilon", "megatron"} | built
            for contender in able:
                assert_correct(contender, shape, case)


def test_contenders_compute_the_same():
    distributed.run(all_are_correct, 1, [SHAPE, replace(SHAPE, batch=2, layout="sbhd")])


def test_flex_computes_the_same(monkeypatch):
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    one_by_one = FlexAttention(Kernel("AUTO", "in a test"), compiled=False)
    assert_correct(Flex("flex", attention=one_by_one), SHAPE, "forward")


def test_epsilon_leaves_keys_out():
    toeplitz, _, epsilon, *_ = contenders("cpu", UNNOTICED, flex=False)
    work = epsilon.work(inputs_of(replace(SHAPE, length=4000)))
    assert work.kept < 0.99
    assert 0 < work.dropped <= UNNOTICED
    assert toeplitz.work(inputs_of(SHAPE)) is None


def test_the_bias_is_that_of_mep():
    bias = mep_bias(replace(SHAPE, heads=2, groups=2))
    for slope, row in zip((2**-4, 2**-8), bias, strict=True):
        for distance in (0, 1, 10, 100):
            scaled = slope * distance
            assert math.exp(row[distance]) == pytest.approx((math.exp(-scaled) + math.exp(-(scaled**2))) / 2, rel=1e-5)


def test_all_work_on_the_same_memory():
    inputs = inputs_of(SHAPE)
    for case in CASES:
        for learned in (False, True):
            leaves = inputs.leaves(case, learned)
            assert [one.data_ptr() for one in leaves] == [one.data_ptr() for one in inputs]
    assert [each.requires_grad for each in leaves] == [True, True, True, True, False]


def compiles_beside_megatron() -> None:
    *_, megatron_learned = contenders("cpu", UNNOTICED, flex=False)[:6]
    program(megatron_learned, inputs_of(replace(SHAPE, length=8)), "forward+backward")()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compile(torch.sin, backend=backend)(torch.ones(2))
    assert graphs


def test_flex_may_compile_beside_megatron():
    distributed.run(compiles_beside_megatron, 1)


def test_pairs_alternate_and_give_one_ratio_each():
    now, order = 0.0, []

    def lasting(name: str, seconds: list[float]) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            now += seconds.pop(0)
            order.append(name)

        return run

    baseline = lasting("baseline", [9, 1, 2, 4])
    pairs = race(baseline, {"own": lasting("own", [9, 3, 2, 40])}, 3, lambda: now)["own"]
    assert order == ["baseline", "own", "own", "baseline", "baseline", "own", "own", "baseline"]
    assert pairs.seconds == [(1, 3), (2, 2), (4, 40)]
    assert pairs.ratio == 3
    assert pairs.ratio_quartiles == (2, 6.5)


@dataclass(frozen=True)
class Hoarder(Contender):
    """Keeps 32 MiB that it makes once, and takes 64 more while it runs."""

    def against(self, shape: Shape, case: Case) -> str | None:  # noqa: ARG002
        return None

    def prepare(self, inputs: Inputs) -> Callable[[], Tensor]:  # noqa: ARG002
        kept = torch.ones(32, 2**20, dtype=torch.uint8)
        return lambda: torch.ones(64, 2**20, dtype=torch.uint8)[0] + kept[0]


def test_memory_is_what_a_contender_adds():
    peak = memory.peak_mib(Hoarder("hoarder"), SHAPE, "forward", 1)
    assert 96 < peak < 100


def reasons(shape: Shape, flex: bool = False) -> dict[tuple[str, Case], str]:
    _, left_out = planned([shape], contenders("cpu", 1e-6, flex))
    return {(each.contender, each.case): each.reason for each in left_out}


def test_what_is_left_out_has_a_reason():
    forward, both = CASES
    given = reasons(SHAPE)
    left_out = {name for name, case in given if case == both and not name.startswith("compiled")}
    assert left_out == {"flex", "flex-learned", "triton", "triton-learned", "flash"}
    assert "--flex" in given["flex", forward]
    assert "learns" in given["toeplitz-learned", forward]
    compiled = reasons(SHAPE, flex=True)
    assert ("flex", forward) not in compiled
    assert "no backward pass" in compiled["flex", both]
    assert "4096" in reasons(replace(SHAPE, length=4097))["megatron", both]
    assert ("megatron", both) not in reasons(replace(SHAPE, length=4096))


def test_what_is_left_out_for_one_reason_is_said_once():
    left_out = [LeftOut(length, case, name, "because") for length in (64, 128) for case in CASES for name in ("a", "b")]
    assert list(left_out_lines([*left_out, LeftOut(64, CASES[0], "c", "other")])) == [
        "left out: a, b (forward, forward+backward; 64, 128): because",
        "left out: c (forward; 64): other",
    ]


def test_a_line_has_the_quartiles_and_what_was_kept():
    row = Row(64, "forward", "epsilon", 1.25, 0.5, (0.25, 0.75), 3.0, kept=0.125, dropped=2e-7)
    assert line(row).split() == ["64", "forward", "epsilon", "1.2", "0.500", "(0.250-0.750)", "3.0", "0.125", "2.0e-07"]
    assert line(replace(row, kept=None, dropped=None)).endswith("3.0")


def test_all_is_measured_printed_written_and_drawn(tmp_path, capfd):
    sizes = ("--lengths", "64", "--heads", "2", "--head-size", "16", "--pairs", "2", "--threads", "1")
    run_main(*sizes, "--json", str(tmp_path / "rows.json"), "--png", str(tmp_path / "ratios.png"))
    report = json.loads((tmp_path / "rows.json").read_text())
    kernels = [] if why_absent() else ["compiled", "compiled-epsilon"]
    fixed = ["unbiased", "toeplitz", "epsilon", *kernels, "megatron"]
    both = ["unbiased", *(f"{name}{suffix}" for name in fixed[1:] for suffix in ("", "-learned"))]
    expected = [("forward", name) for name in fixed] + [("forward+backward", name) for name in both]
    assert [(row["case"], row["contender"]) for row in report["rows"]] == expected
    for row in report["rows"]:
        assert row["length"] == 64
        assert 0 < row["ratio_quartiles"][0] <= row["ratio"] <= row["ratio_quartiles"][1]
        assert row["ms"] > 0
        assert row["mib"] >= 0
        shares = (1.0, 0.0) if "epsilon" in row["contender"] else (None, None)
        assert (row["kept"], row["dropped"]) == shares, "nothing can be left out of 64 positions"
    measured = {(row["case"], row["contender"]) for row in report["rows"]}
    left_out = {(each["case"], each["contender"]) for each in report["left_out"]}
    assert measured | left_out == {(case, name) for case in CASES for name in ("unbiased", *NAMES)}
    assert not measured & left_out
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")
    printed = capfd.readouterr().out
    assert report["settings"]["machine"] in printed
    assert torch.__version__ in report["settings"]["machine"]
    assert "left out: triton, triton-learned" in printed


def test_a_long_sequence_is_measured_in_one_pass(tmp_path, capfd):
    run_main(
        "--long", "2400", "--heads", "4", "--head-size", "16", "--threads", "1", "--json", str(tmp_path / "long.json")
    )
    found = json.loads((tmp_path / "long.json").read_text())["long"]
    assert found["length"] == 2400
    assert 0.1 < found["kept"] < 1
    assert 0 < found["dropped"] <= 1e-6
    assert 0.05 < found["idle_gib"] <= found["peak_gib"] < 5
    assert found["seconds"] > 0
    assert "peak memory" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--heads 4 --groups 3", "does not divide"),
        ("--pairs 1", "at least 2"),
        ("--epsilon 0", "between 0 and 1"),
        ("--only toeplitz nothing", "invalid choice"),
        ("--long 64 --png ratios.png", "nothing to draw"),
        ("--pairs 1 --epsilon 1", "at least 2; --epsilon"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments, complaint, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    assert complaint in capsys.readouterr().err
