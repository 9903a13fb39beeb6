"""The weights of a checkpoint's encoding, read without a model, a device or other ranks."""

import re
import warnings
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from megatron_mep.checkpoint.files import READ_FIRST
from megatron_mep.checkpoint.manifest import faults
from megatron_mep.config.errors import CheckpointError, Mistake
from megatron_mep.model.stage import ENCODING_WEIGHTS

_NAME = re.compile(rf"decoder\.layers\.(?:(?P<index>\d+)\.)?{re.escape(ENCODING_WEIGHTS)}(?P<name>.+)")
"""Layers that are all alike are stored as one stack, without an index."""


def encoding_weights(folder: Path, layers: Collection[int]) -> dict[int, dict[str, Tensor]]:
    """The weights and constants of some layers by name, for all heads of the model, whoever wrote the pieces.

    Layers are counted from 1. Where all layers share them, they are those of the first that the encoding acts in, and
    no other has any. A `CheckpointError` where a file is missing, has not the size it was written with, or cannot be
    read.
    """
    _refuse_faults(folder, READ_FIRST, hashed=True)
    found: dict[int, dict[str, Tensor]] = {layer: {} for layer in layers}
    for key, value in _read(folder).items():
        match = _NAME.fullmatch(key)
        assert match is not None, "others are not read"
        for layer, weights in found.items():
            if match["index"] is None:
                weights[match["name"]] = value[layer - 1]
            elif int(match["index"]) == layer - 1:
                weights[match["name"]] = value
    return found


def _read(folder: Path) -> dict[str, Tensor]:
    """The tensors of all layers, by their keys."""
    reader = FileSystemReader(folder)
    metadata = reader.read_metadata()
    stored = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata) and _NAME.fullmatch(key)
    }
    # a hash would read whole files, of which weights are few bytes
    _refuse_faults(folder, _files_of(stored, metadata), hashed=False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            checkpoint.load(stored, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        # torch's own words name no file, and advise to read what no one should trust
        raise _unreadable(folder, "is damaged: its tensors cannot be read") from error
    return stored


def _files_of(keys: Collection[str], metadata: Metadata) -> set[str]:
    """The names of the files that hold some tensors."""
    places = metadata.storage_data or {}
    return {place.relative_path for piece, place in places.items() if piece.fqn in keys}


def _refuse_faults(folder: Path, files: Collection[str], hashed: bool) -> None:
    for fault in faults(folder, only=files, hashed=hashed):
        raise _unreadable(fault.file, fault.rule)


def _unreadable(place: Path, rule: str) -> CheckpointError:
    remedy = "let `mep checkpoint verify` name what is wrong, and restore it from a copy"
    return CheckpointError(Mistake(str(place), None, rule, remedy))
