"""What a run begins with, in hashes: its initial weights but the encoding's, and the order of its data."""

import hashlib
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from torch import distributed, nn

from megatron_mep.checkpoint.disk import write_atomically
from megatron_mep.config.base import Config
from megatron_mep.data.batches import TrainingBatches
from megatron_mep.parallel.tensor import is_encoding_weight

FILE = "fingerprints.json"
MOST_SAMPLES = 1024
"""How many samples are looked at, evenly spread over the run where it has more."""


class Fingerprints(Config):
    """Equal in two runs where they started from the same weights, and were given the same samples."""

    weights: str
    """SHA-256 of the weights as they were drawn, those of the encoding left out."""
    data_order: str
    """SHA-256 of the tokens of up to 1024 samples, in the order of training."""

    @classmethod
    def read(cls, run_folder: Path) -> "Fingerprints | None":
        """Those of a run; `None` where it has not begun."""
        try:
            return cls.model_validate_json((run_folder / FILE).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None


def fingerprint_weights(model: nn.Module) -> str:
    """Of all parts of a model at a layout, alike on all ranks; collective."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not is_encoding_weight(parameter):
            digest.update(f"{name} {tuple(parameter.shape)}".encode())
            digest.update(parameter.detach().cpu().contiguous().view(-1).numpy().data)
    parts: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(parts, digest.hexdigest())
    # replicas hold the same
    return hashlib.sha256(" ".join(sorted(set(parts))).encode()).hexdigest()


def fingerprint_order(batches: TrainingBatches) -> str:
    """Of the samples that a run trains on."""
    digest, last = hashlib.sha256(), batches.plan.num_samples - 1
    for number in np.linspace(0, last, min(last + 1, MOST_SAMPLES)).astype(int).tolist():
        digest.update(batches.micro_batch(number, 1).numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def write_fingerprints(run_folder: Path, weights: str, data_order: str) -> None:
    """Leaves them in the run's folder."""
    found = Fingerprints(weights=weights, data_order=data_order)
    write_atomically(run_folder / FILE, found.model_dump_json(indent=2) + "\n")
