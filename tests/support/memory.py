"""How much memory a program takes, by the tensors that its operations make and when these are freed."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(program: Callable[[], object]) -> int:
    """The most that is allocated at once by the program; what an operation holds only inside itself is not seen."""
    with _Storages() as storages:
        program()
    return storages.peak


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


class _Storages(TorchDispatchMode):
    """The storages that are alive of those that operations have returned, whichever thread frees them."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._held = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and not each.is_meta:
                self._take_up(each.untyped_storage())
        return result

    def _take_up(self, storage: torch.UntypedStorage) -> None:
        number, size = storage._cdata, storage.nbytes()
        if number not in self._alive:
            self._alive[number] = weakref.ref(storage, lambda _: self._drop(number))
        # an operation may have resized it
        self._held += size - self._sizes.get(number, 0)
        self._sizes[number] = size
        self.peak = max(self.peak, self._held)

    def _drop(self, number: int) -> None:
        del self._alive[number]
        self._held -= self._sizes.pop(number)
