"""FlexAttention without its kernels: the modification of scores and the mask that the kernels take, done by torch."""

import importlib
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention as torch_flex

from megatron_mep.attention import flex
from megatron_mep.attention.flex import FlexAttention, Kernel, bias_by_distance, flex_mistakes, kernel_for
from megatron_mep.attention.reference import dense_bias, reference_attention
from megatron_mep.config.errors import ConfigError
from tests.attention.oracle import SCALE, Inputs, Shape, attend_by_query, random_inputs
from tests.support.tolerance import assert_exact_equal, assert_within_budget

TRITON = Kernel("TRITON", "in a test")

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture
def untraced(monkeypatch):
    """Torch traces each call, even one by one operations, unless told so: half a second a call."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def evaluation_inputs(shape: Shape, dtype: torch.dtype = torch.float32) -> Inputs:
    """Without gradients, which FlexAttention does not compute on a CPU."""
    return Inputs(*(tensor.detach() for tensor in random_inputs(shape, dtype)))


def attend_densely(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, window: Tensor | None = None) -> Tensor:
    if window is not None:
        bias = bias.masked_fill(torch.arange(bias.size(1)) >= window[:, None], -torch.inf)
    return reference_attention(query, key, value, dense_bias(bias, query.size(2), key.size(2)), scale=SCALE)


def assert_correct(inputs: Inputs, attend: FlexAttention, windows: tuple[int, ...] | None = None) -> None:
    window = None if windows is None else torch.tensor([128 * -(-window // 128) for window in windows])
    actual = attend(*inputs[:4], scale=SCALE, windows=windows)
    plain = attend_densely(*inputs[:4], window=window)
    exact = attend_by_query(*inputs.double()[:4], window=window)
    assert_within_budget(actual, plain, exact, "output")


@pytest.mark.parametrize("length", [1, 63, 128, 300])
def test_matches_one_query_at_a_time(untraced, length):
    assert_correct(evaluation_inputs(Shape(2, 2, 2, length, length, 16)), FlexAttention(TRITON, compiled=False))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_heads_share_keys_of_their_group(untraced, groups):
    assert_correct(evaluation_inputs(Shape(1, 4, groups, 70, 70, 16)), FlexAttention(TRITON, compiled=False))


@pytest.mark.parametrize("queries", [1, 69, 140])
def test_queries_stand_at_the_end_of_the_keys(untraced, queries):
    inputs = evaluation_inputs(Shape(1, 4, 2, queries, 270, 16))
    attend = FlexAttention(TRITON, compiled=False)
    assert_correct(inputs, attend)
    assert_correct(inputs, attend, windows=(1, 100, 200, 1000))


def test_windows_are_kept_head_by_head_in_whole_blocks(untraced):
    inputs = evaluation_inputs(Shape(2, 4, 2, 300, 300, 16))
    assert_correct(inputs, FlexAttention(TRITON, compiled=False), windows=(1, 128, 129, 300))


def test_bf16_keeps_its_bias_in_fp32_beyond_256_positions(untraced):
    inputs = evaluation_inputs(Shape(1, 4, 2, 300, 300, 16), torch.bfloat16)
    assert_correct(inputs, FlexAttention(TRITON, compiled=False))


def test_torch_traces_the_same():
    attend = FlexAttention(TRITON, compiled=False)
    assert_correct(evaluation_inputs(Shape(1, 4, 2, 140, 270, 16)), attend, windows=(1, 100, 200, 1000))


@pytest.mark.parametrize("first", [0, 100, 130, 400])
def test_queries_may_stand_anywhere_over_or_after_the_keys(untraced, first):
    query, key, value, *_ = evaluation_inputs(Shape(1, 2, 2, 100, 230, 16))
    bias = evaluation_inputs(Shape(1, 2, 2, 1, 500, 16)).bias

    def attend_at_first(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        distance = torch.arange(first, first + 100)[:, None] - torch.arange(230)
        scores = SCALE * query @ key.mT + bias[:, distance.clamp(min=0)]
        return scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ value

    inputs = (query, key, value, bias)
    actual = FlexAttention(TRITON, compiled=False)(*inputs, scale=SCALE, first_query=first)
    exact = attend_at_first(*(tensor.double() for tensor in inputs))
    assert_within_budget(actual, attend_at_first(*inputs), exact, "output")


def test_every_distance_of_131072_positions_finds_its_own_bias():
    heads, length = 3, 131072
    bias = torch.arange(heads * length, dtype=torch.float32).view(heads, length)
    head, distance = torch.arange(heads)[:, None], torch.arange(length)
    for first, queries in ((0, length), (length - 1, 1), (length - 512, 512)):
        add_bias = bias_by_distance(bias, queries, length, first)
        for query in (queries - 1, queries // 2, 0):
            key = torch.arange(first + query + 1)
            found = add_bias(torch.zeros(()), torch.tensor(0), head, torch.tensor(query), key)
            assert_exact_equal(found, bias[:, distance[: len(key)]].flip(1))


def test_pairs_in_the_future_find_an_entry_too():
    bias = torch.arange(1.0, 11.0)[None]
    query, key = torch.arange(10)[:, None], torch.arange(10)
    found = bias_by_distance(bias, 10, 10, 0)(torch.zeros(()), torch.tensor(0), torch.tensor(0), query, key)
    assert_exact_equal(found, (query - key + 1.0).clamp(min=0))


def test_a_score_in_bf16_gets_its_bias_in_fp32():
    bias = 1 + torch.arange(300, dtype=torch.float64)[None] * 2**-20
    zero, half = torch.tensor(0), torch.zeros((), dtype=torch.bfloat16)
    found = bias_by_distance(bias, 300, 300, 0)(half, zero, zero, torch.tensor(299), torch.arange(300))
    assert_exact_equal(found, bias[0].float().flip(0))


def test_a_learned_bias_gets_its_gradient_through_the_table():
    inputs = evaluation_inputs(Shape(2, 4, 2, 60, 150, 16))
    attend = FlexAttention(TRITON, compiled=False)
    gradients = []
    for function, given in ((attend_by_query, inputs.double()), (attend_densely, inputs), (attend, inputs)):
        bias = given.bias.clone().requires_grad_()
        if function is attend:
            modification = bias_by_distance(bias, 60, 150, 90)
            mask = flex.causal_block_mask(None, 60, 150, 90, bias.device, 128)
            output = torch_flex.flex_attention(
                *given[:3], score_mod=modification, block_mask=mask, scale=SCALE, enable_gqa=True
            )
        else:
            output = function(*given[:3], bias)
        gradients.append(torch.autograd.grad(output, bias, given.grad_output)[0])
    exact, plain, actual = gradients
    assert_within_budget(actual, plain, exact, "gradient of bias")
    assert not actual[:, 150:].any()


def test_a_mask_is_built_once_for_windows_of_the_same_blocks(monkeypatch, untraced):
    built = []
    build = flex.causal_block_mask
    monkeypatch.setattr(
        flex, "causal_block_mask", lambda *args, **options: built.append(args) or build(*args, **options)
    )
    attend = FlexAttention(TRITON, max_masks=2, compiled=False)
    inputs = evaluation_inputs(Shape(1, 2, 2, 200, 200, 16))
    call = partial(attend, *inputs[:4], scale=SCALE)
    for windows in ((1, 129), (128, 200), None, (200, 999)):
        call(windows=windows)
    assert [args[0] for args in built] == [(128, 256), None]
    shorter = (part[:, :, :100] for part in inputs[:3])
    attend(*shorter, inputs.bias, scale=SCALE)
    call(windows=(1, 129))
    assert [args[0] for args in built] == [(128, 256), None, None, (128, 256)], "the oldest is forgotten"


@pytest.fixture
def num_graphs(monkeypatch):
    """How many graphs were captured so far, of which nothing is compiled."""
    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    yield lambda: counters["stats"]["unique_graphs"]
    torch.compiler.reset()


def attend_at_lengths(attend: FlexAttention, lengths: tuple[int, ...]) -> None:
    for length in lengths:
        assert_correct(evaluation_inputs(Shape(1, 2, 2, length, length, 16)), attend)


def test_two_compilations_serve_all_lengths(num_graphs):
    attend_at_lengths(FlexAttention(TRITON), (150, 260, 270, 300))
    assert num_graphs() == 2


def test_layers_share_what_was_compiled(num_graphs):
    for _ in range(2):
        attend_at_lengths(FlexAttention(TRITON), (150,))
    assert num_graphs() == 1


def test_more_lengths_than_may_be_compiled_are_an_error(num_graphs, monkeypatch):
    monkeypatch.setattr(flex, "MAX_COMPILATIONS", 2)
    attend = FlexAttention(replace(TRITON, by_length=True))
    attend_at_lengths(attend, (140, 150, 140))
    assert num_graphs() == 2
    with pytest.raises(FailOnRecompileLimitHit):
        attend_at_lengths(attend, (160,))


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        ({}, "FLASH", "FlashAttention kernel"),
        ({"capability": (10, 0)}, "FLASH", "FlashAttention kernel"),
        ({"dtype": torch.float16}, "FLASH", "FlashAttention kernel"),
        ({"learned": True}, "TRITON", "a learned bias gets no gradient"),
        ({"dtype": torch.float32}, "TRITON", "does not compute in torch.float32"),
        ({"capability": (8, 0)}, "TRITON", "compute capability 9 and 10"),
        ({"capability": (12, 0)}, "TRITON", "compute capability 9 and 10"),
        ({"capability": None}, "AUTO", "only evaluates"),
        ({"deterministic": True}, "TRITON", "no deterministic backward pass"),
        ({"flash_installed": False}, "TRITON", "flash_attn.cute is not there"),
    ],
)
def test_the_kernel_is_flash_attentions_where_it_serves(change, name, reason):
    best = {"learned": False, "dtype": torch.bfloat16, "capability": (9, 0), "flash_installed": True}
    kernel = kernel_for(**(best | change))
    assert kernel.name == name
    assert reason in kernel.reason
    assert kernel.by_length == (name != "TRITON")
    assert kernel.block_queries == (256 if kernel.name == "FLASH" and change.get("capability") == (10, 0) else 128)


def test_flash_attention_is_installed_where_its_cute_kernels_are(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('built for another torch')")
    assert not flex.flash_is_installed()
    (package / "__init__.py").write_text("")
    importlib.invalidate_caches()
    assert not flex.flash_is_installed(), "an older version"
    (package / "cute.py").touch()
    importlib.invalidate_caches()
    assert flex.flash_is_installed()
    del sys.modules["flash_attn"]


@pytest.mark.parametrize("name", ["query", "key", "value", "bias"])
def test_gradients_on_a_cpu_are_refused(name):
    inputs = evaluation_inputs(Shape(1, 2, 2, 5, 5, 16))
    getattr(inputs, name).requires_grad_()
    with pytest.raises(ConfigError) as refusal:
        FlexAttention(TRITON)(*inputs[:4], scale=SCALE)
    assert refusal.value.mistakes[0].key == "model.attention_backend"
    assert "no backward pass on a CPU" in refusal.value.mistakes[0].rule
    assert "auto" in refusal.value.mistakes[0].remedy


@pytest.mark.parametrize(
    ("device_type", "gradients", "learned", "deterministic", "rules"),
    [
        ("cpu", False, True, True, []),
        ("cuda", True, True, False, []),
        ("cuda", True, False, True, []),
        ("cuda", True, True, True, ["in no fixed order"]),
        ("cpu", True, True, True, ["no backward pass on a CPU", "in no fixed order"]),
    ],
)
def test_what_is_refused(device_type, gradients, learned, deterministic, rules):
    mistakes = flex_mistakes(device_type=device_type, gradients=gradients, learned=learned, deterministic=deterministic)
    assert len(mistakes) == len(rules)
    assert all(rule in mistake.rule for rule, mistake in zip(rules, mistakes, strict=True))


@pytest.mark.parametrize(
    ("change", "options", "broken"),
    [
        ({"query": torch.zeros(1, 3, 5, 16)}, {}, "3 heads do not split over 2 groups"),
        ({"query": torch.zeros(1, 4, 6, 16)}, {}, "6 queries cannot be the last of 5 positions"),
        ({"bias": torch.zeros(2, 5)}, {}, "bias of 2 heads for 4"),
        ({"bias": torch.zeros(4, 4)}, {}, "bias ends at distance 3, before 5 positions"),
        ({"bias": torch.zeros(4, 12)}, {"first_query": 8}, "bias ends at distance 11, before 13 positions"),
        ({"bias": torch.zeros(4, 5, dtype=torch.bfloat16)}, {}, "fp32 or wider, not torch.bfloat16"),
        ({}, {"windows": (1, 2)}, "windows of 2 heads for 4"),
    ],
)
def test_broken_calls_are_told(change, options, broken):
    inputs = evaluation_inputs(Shape(1, 4, 2, 5, 5, 16))._replace(**change)
    with pytest.raises(AssertionError, match=broken):
        FlexAttention(TRITON)(*inputs[:4], scale=SCALE, **options)
