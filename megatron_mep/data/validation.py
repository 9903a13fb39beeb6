"""The validation split as one stream of tokens."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatron_mep.data.manifest import VALIDATION, Manifest


def validation_tokens(folder: Path) -> NDArray[np.integer]:
    """All tokens of the validation split, `[num_tokens]`, documents in order, each with its end; mapped from disk."""
    return np.memmap(folder / f"{VALIDATION}.bin", dtype=Manifest.load(folder).token_dtype, mode="r")
