"""The proof that an exported folder computes what its checkpoint does, without which there is no export."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from megatron_mep.config.errors import Mistake, UserError
from megatron_mep.export import verify
from megatron_mep.export.reference import Case

FILE = "certificate.json"
TOLERANCE = 1e-4
"""Largest difference of any logit, in fp32."""


class ExportError(UserError):
    """A model cannot be exported as it is."""


def certify(folder: Path, model_cases: list[Case], tokenizer_cases: list[Case], made_of: dict[str, Any]) -> None:
    """Loads the folder in another process, compares, and writes the certificate; an `ExportError` says what differs.

    `made_of` is what the certificate says of where the folder comes from.
    """
    found = _verified(folder, {"model": model_cases, "tokenizer": tokenizer_cases})
    differing = {name: value for name, value in found["differences"].items() if not value <= TOLERANCE}
    if differing or found["other_texts"] or found["imported"]:
        raise ExportError(_mistakes(folder, differing, found))
    certificate = {
        **made_of,
        "type": "float32",
        "tolerance": TOLERANCE,
        "largest_difference_of_a_logit": found["differences"],
        "texts_tokenized_alike": len(tokenizer_cases),
        "loaded_by": {name: found[name] for name in ("torch", "transformers")},
        "sha256": {file.name: _sha256(file) for file in sorted(folder.iterdir())},
    }
    (folder / FILE).write_text(json.dumps(certificate, indent=2) + "\n", encoding="utf-8")


def _verified(folder: Path, cases: dict[str, list[Case]]) -> dict[str, Any]:
    """What `verify` finds in a process that knows nothing of this one, and leaves nothing behind."""
    with tempfile.TemporaryDirectory() as here:
        reference, result = Path(here) / "reference.pt", Path(here) / "result.json"
        torch.save(cases, reference)
        command = [sys.executable, "-P", str(Path(verify.__file__)), str(folder), str(reference), str(result)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(Path(here) / "modules")}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            told = ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"]
            rule = f"cannot be loaded by transformers, and nothing was written: {told[-1]}"
            raise ExportError(Mistake(str(folder), None, rule, "run it again with PYTHONFAULTHANDLER=1, and report it"))
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found


def _mistakes(folder: Path, differing: dict[str, float], found: dict[str, Any]) -> list[Mistake]:
    remedy = "nothing was written: report it with the run file"
    rules = [
        f"computes other logits than its checkpoint: {name} differs by {value:.1e}, and {TOLERANCE:.0e} is allowed"
        for name, value in differing.items()
    ]
    if found["other_texts"]:
        first, *more = found["other_texts"]
        rules.append(f"has a tokenizer that reads {first!r} and {len(more)} more texts in another way")
    if found["imported"]:
        rules.append(f"imports {', '.join(found['imported'])}, which need not be there where it is loaded")
    return [Mistake(str(folder), None, rule, remedy) for rule in rules]


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
