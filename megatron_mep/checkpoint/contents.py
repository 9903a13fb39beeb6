"""What a checkpoint holds, read from its small files: no tensor is loaded, and no device or other rank is needed."""

import json
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import yaml
from megatron.core import dist_checkpointing

from megatron_mep.checkpoint import written_by
from megatron_mep.checkpoint.files import RUN_FILE
from megatron_mep.checkpoint.manifest import listed
from megatron_mep.checkpoint.progress import Progress, read_progress
from megatron_mep.checkpoint.state import MOMENT_KEYS, OPTIMIZER
from megatron_mep.checkpoint.written_by import Writer


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the whole model, whoever wrote the pieces."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    learned: bool
    """Whether it has moments; constants of an encoding have none."""


@dataclass(frozen=True)
class Contents:
    """What `inspect` tells."""

    folder: str
    progress: Progress
    run: dict[str, Any]
    """The resolved run file that it was written under."""
    written_by: dict[str, Any]
    """Time, host, versions and commit; empty where the writer did not say."""
    file_bytes: dict[str, int]
    weights: tuple[StoredTensor, ...]

    @property
    def num_learned(self) -> int:
        """Trained weights, as one number."""
        return sum(prod(tensor.shape) for tensor in self.weights if tensor.learned)

    def json(self) -> str:
        """All of it for a program."""
        return json.dumps({**asdict(self), "num_learned": self.num_learned}, indent=1)

    def __str__(self) -> str:
        facts = [*self._facts(), ("weights", f"{self.num_learned:,} learned, each with its moments of AdamW")]
        lines = [f"{name:<13}{told}" for name, told in facts]
        names = [tensor.name for tensor in self.weights]
        width = max(map(len, names), default=0)
        for tensor in self.weights:
            constant = "" if tensor.learned else "  constant"
            lines.append(f"  {tensor.name:<{width}}  {tensor.dtype}  {list(tensor.shape)}{constant}")
        return "\n".join(lines)

    def _facts(self) -> list[tuple[str, str]]:
        run, reached = self.run, self.progress
        training, encoding = run["training"], dict(run["model"]["encoding"])
        name = encoding.pop("name")
        options = ", ".join(f"{key}={value}" for key, value in encoding.items())
        return [
            ("checkpoint", self.folder),
            ("run", run["name"]),
            ("step", f"{reached.step:,} of {training['steps']:,}"),
            ("tokens", f"{reached.consumed_tokens:,} in sequences of {training['seq_length']:,}"),
            ("encoding", f"{name} ({options})" if options else name),
            ("layout", f"tensor {reached.tensor_size} x context {reached.context_size} x pipeline "
                       f"{reached.pipeline_size} x data {reached.data_size}, ZeRO-{training['zero_stage']}, "
                       f"{training['precision']}"),
            ("tokenizer", reached.tokenizer_sha256),
            ("corpus", reached.corpus_fingerprint),
            ("written", f"{self.written_by.get('time', 'unknown')} by {Writer.of(self.written_by)}"),
            ("files", f"{len(self.file_bytes)} of {sum(self.file_bytes.values()):,} bytes; "
                      "`mep checkpoint verify` compares their hashes"),
        ]  # fmt: skip


def contents_of(folder: Path) -> Contents:
    """What a checkpoint holds whose small files are whole, as `find` makes sure."""
    stated = folder / written_by.FILE
    files = listed(folder)
    assert files is not None, "the list of files is whole"
    return Contents(
        folder=str(folder),
        progress=read_progress(folder),
        run=yaml.safe_load((folder / RUN_FILE).read_text(encoding="utf-8")),
        written_by=json.loads(stated.read_text(encoding="utf-8")) if stated.is_file() else {},
        file_bytes={name: size for name, (size, _) in files.items()},
        weights=tensors_in(folder),
    )


def tensors_in(folder: Path) -> tuple[StoredTensor, ...]:
    """The weights and constants of a checkpoint, by name."""
    stored = dist_checkpointing.load_tensors_metadata(str(folder))
    return tuple(
        StoredTensor(
            name,
            tuple(entry.global_shape),
            str(entry.dtype).removeprefix("torch."),
            learned=all(f"{kind}.{name}" in stored for kind in MOMENT_KEYS),
        )
        for name, entry in sorted(stored.items())
        if not name.startswith(OPTIMIZER)
    )
