"""How much memory a program takes, by torch's own account of its allocations on a CPU."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile


def peak_bytes(program: Callable[[], object]) -> int:
    """The most that is allocated at once above what was when the program began.

    What another thread frees is not seen, as gloo's do: keep collectives few.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        program()
    assert recorded.profiler is not None
    assert recorded.profiler.kineto_results is not None
    events = [each for each in recorded.profiler.kineto_results.events() if each.name() == "[memory]"]
    events.sort(key=lambda each: each.start_ns())
    held = peak = 0
    for each in events:
        held += each.nbytes()
        peak = max(peak, held)
    return peak


def saved_bytes(program: Callable[[], object], beside: torch.nn.Module) -> int:
    """What a forward pass saves for the backward pass, each storage once, the module's weights aside."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in beside.parameters()}
    storages: dict[int, int] = {}
    held: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
            # so that no other storage takes its place
            held.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        program()
    return sum(storages.values())
