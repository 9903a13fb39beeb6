import logging
from importlib.metadata import version

import pytest
import torch
from megatron.core import tensor_parallel
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from megatron.core.transformer.utils import gelu_impl
from torch import distributed
from torch.nn.functional import dropout

from megatron_mep.parallel import cpu
from tests.support.distributed import joined, run


def test_adaptations_are_for_the_installed_megatron():
    assert version("megatron-core") == "0.16.1"


def test_every_adaptation_applies_once():
    run(_install_twice, 1)


def _install_twice():
    for _ in range(2):
        cpu.install()
        for function in cpu.SAYING_CUDA:
            assert "cuda" not in function.__code__.co_consts
            assert "cpu" in function.__code__.co_consts
        for replaced in cpu.REPLACED:
            assert getattr(replaced.owner, replaced.name) is replaced.by


def test_a_megatron_that_has_changed_is_noticed():
    with pytest.raises(AssertionError, match="no longer says 'cuda'"):
        cpu.say_cpu(lambda: torch.zeros(1, device="cpu"))
    with pytest.raises(AssertionError, match="is gone"):
        cpu.Replaced(torch.cuda, "no_such_function", print).install()


def test_nothing_changes_where_there_is_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = [getattr(replaced.owner, replaced.name) for replaced in cpu.REPLACED]
    codes = [function.__code__ for function in cpu.SAYING_CUDA]
    cpu.install()
    assert [getattr(replaced.owner, replaced.name) for replaced in cpu.REPLACED] == found
    assert [function.__code__ for function in cpu.SAYING_CUDA] == codes


def test_no_compiler_is_needed():
    run(_compile, 1)


def _compile():
    cpu.install()

    def refuse(*_: object) -> None:
        raise AssertionError("compiled")

    x = torch.linspace(-3, 3, 7)
    assert torch.equal(torch.compile(torch.sin, backend=refuse)(x), torch.sin(x))
    frames = torch._dynamo.utils.counters["frames"]
    frames.clear()
    # Megatron decorates this one with torch.compile
    torch.testing.assert_close(gelu_impl(x), torch.nn.functional.gelu(x, approximate="tanh"))
    assert not frames


def test_megatron_draws_from_its_streams():
    run(_streams, 2)


def _streams():
    here = joined(seed=5, tensor=2)
    # Megatron's rule: the default stream has the seed, that of tensor-parallel regions another one on each rank
    default = torch.Generator().manual_seed(5)
    tensor = torch.Generator().manual_seed(5 + 2718 + here.tensor_rank)
    data = torch.Generator().manual_seed(5)
    tracker = get_cuda_rng_tracker()

    def expect(generator: torch.Generator) -> None:
        assert torch.equal(torch.rand(3), torch.rand(3, generator=generator))

    warned = _Warnings()
    logging.getLogger("megatron").addHandler(warned)
    for _ in range(2):
        expect(default)
        with tracker.fork():
            expect(tensor)
            with tracker.fork("data-parallel-rng"):
                expect(data)
            with tracker.fork():
                expect(tensor)
            expect(tensor)
        expect(default)
    assert not warned.records


def test_dropout_of_shared_activations_is_the_same_on_every_tensor_rank():
    run(_dropout, 2)


def _dropout():
    here = joined(seed=3, tensor=2)
    shared = dropout(torch.ones(64), 0.5)
    with get_cuda_rng_tracker().fork():
        own = dropout(torch.ones(64), 0.5)
    for mask, alike in ((shared, True), (own, False)):
        masks = [torch.empty(64) for _ in range(2)]
        distributed.all_gather(masks, mask, group=here.tensor_group)
        assert torch.equal(*masks) == alike
    torch.manual_seed(3)
    assert torch.equal(shared, dropout(torch.ones(64), 0.5))


def test_recomputed_activations_drop_the_same_elements():
    run(_recompute, 1)


def _recompute():
    def layer(x: torch.Tensor) -> torch.Tensor:
        x = dropout(x.square(), 0.5)
        with get_cuda_rng_tracker().fork():
            return dropout(x.sin(), 0.5)

    joined(seed=11)
    gradients, outputs = [], []
    for recompute in (False, True):
        tensor_parallel.model_parallel_cuda_manual_seed(11, force_reset_rng=True)
        x = torch.linspace(0.1, 2.0, 64, requires_grad=True)
        y = tensor_parallel.checkpoint(layer, False, x) if recompute else layer(x)
        # what is drawn between the two passes must not matter
        after = torch.rand(5)
        y.square().sum().backward()
        gradients.append(x.grad)
        outputs.append(torch.cat([y.detach(), after, torch.rand(5)]))
    assert torch.equal(*outputs)
    assert torch.equal(*gradients)


def test_the_sizes_of_broadcast_data_travel_on_the_cpu():
    run(_broadcast, 2)


def _broadcast():
    here = joined(tensor=2)
    sent = {"tokens": torch.arange(6).reshape(2, 3)}
    received = tensor_parallel.broadcast_data(["tokens"], sent if here.tensor_rank == 0 else {}, torch.int64)
    assert torch.equal(received["tokens"], sent["tokens"])


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
