"""How far a run had come when a checkpoint was written, as a small file that a person can read."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from megatron_mep.config.errors import CheckpointError, Mistake

FILE = "progress.json"


@dataclass(frozen=True)
class Progress:
    """Where training goes on."""

    step: int
    """Optimizer steps done, skipped ones too."""
    consumed_samples: int
    """Training sequences seen on all ranks; the next batch starts there."""
    consumed_tokens: int
    """Training tokens seen on all ranks."""
    tokenizer_sha256: str
    """Which tokenizer cut the training text."""
    corpus_fingerprint: str
    """Which prepared corpus the samples are counted in."""
    tensor_size: int
    """Tensor-parallel size of the writer."""
    data_size: int
    """Data-parallel size of the writer."""
    context_size: int = 1
    """Context-parallel size of the writer."""
    pipeline_size: int = 1
    """Pipeline-parallel size of the writer."""
    skipped_steps: int = 0
    """Steps without an update, of those done."""
    loss_spikes: int = 0
    """Steps whose loss was out of line, of those done."""
    recent_losses: tuple[float, ...] = ()
    """What the next losses are compared with, nats per token, oldest first."""

    @property
    def updates(self) -> int:
        """How often the weights were updated."""
        return self.step - self.skipped_steps

    def json(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"


def read_progress(folder: Path) -> Progress:
    """The progress that a checkpoint states."""
    file = folder / FILE
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return Progress(**{**stored, "recent_losses": tuple(stored.get("recent_losses", ()))})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            Mistake(str(file), None, f"cannot be read ({error})", "give a checkpoint that `mep train` wrote")
        ) from None
