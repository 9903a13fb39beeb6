"""An encoding and its length tricks, from the options that a model's configuration states."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from megatron_mep.encodings.base import Encoding


def encoding_of(
    stated: Mapping[str, Any], tricks: Sequence[Mapping[str, Any]], train_length: int, classes: Mapping[str, type]
) -> Encoding:
    """The trained encoding under its tricks, which are put on in turn."""
    # a model is built on a device without memory, on which no formula could be computed
    with torch.device("cpu"):
        encoding: Encoding = _built(stated, classes)
        for trick in tricks:
            encoding = _built(trick, classes).applied(encoding, train_length)
    return encoding


def _built(stated: Any, classes: Mapping[str, type]) -> Any:
    """A value as it was before it was written: of classes by their names, and of tuples, which JSON has none of."""
    if isinstance(stated, Mapping):
        options = {name: _built(value, classes) for name, value in stated["options"].items()}
        return classes[stated["class"]](**options)
    return tuple(_built(value, classes) for value in stated) if isinstance(stated, list | tuple) else stated
