"""The list of a checkpoint's files, their sizes and their hashes, written once all of them are on the disk."""

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from megatron_mep.checkpoint.disk import sync, write_atomically

MANIFEST = "checksums.json"

Checksums = dict[str, tuple[int, str]]
"""Bytes and sha256 of files, by their names in the checkpoint's folder."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a file of a checkpoint."""

    file: Path
    rule: str
    """As a clause: `is missing`."""


def checksums(files: Iterable[Path]) -> Checksums:
    """The checksums of files, once they are on the disk."""
    found: Checksums = {}
    for file in files:
        sync(file)
        found[file.name] = file.stat().st_size, _sha256(file)
    return found


def seal(folder: Path, known: Checksums) -> None:
    """Lists every file with its checksum; `known` are those that other ranks took."""
    files = known | checksums(file for file in folder.iterdir() if file.name not in known)
    write_atomically(folder / MANIFEST, _text(files))
    sync(folder)


def listed(folder: Path) -> Checksums | None:
    """What the list says; `None` where it is missing or not, byte for byte, what was written."""
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in json.loads(text)["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return files if text == _text(files) else None


def faults(
    folder: Path, rank: int = 0, world_size: int = 1, only: Collection[str] | None = None, hashed: bool = True
) -> list[Fault]:
    """What is wrong with the files of a checkpoint, or with `only` some of them.

    Each of `world_size` ranks looks at its share. Unless they are `hashed`, files need no more than their size.
    """
    files = listed(folder)
    if files is None:
        return [Fault(folder / MANIFEST, "is missing or damaged: this is no whole checkpoint")]
    names = [name for name in sorted(files) if only is None or name in only]
    found = [(name, _fault(folder / name, *files[name], hashed)) for name in names[rank::world_size]]
    if only is None and rank == 0:
        strange = sorted(entry.name for entry in folder.iterdir() if entry.name not in {*files, MANIFEST})
        found += [(name, "is not part of this checkpoint") for name in strange]
    return [Fault(folder / name, rule) for name, rule in found if rule]


def _text(files: Checksums) -> str:
    """The list's text, its own hash included: damage of the list shall not be told of the files in it."""
    entries = {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in sorted(files.items())}
    own = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    return json.dumps({"format": 2, "files": entries, "sha256": own}, indent=1)


def _fault(file: Path, expected_size: int, sha256: str, hashed: bool) -> str | None:
    if not file.is_file():
        return "is missing"
    size = file.stat().st_size
    if size != expected_size:
        return f"is damaged: {size} bytes in place of {expected_size}"
    return (
        None if not hashed or _sha256(file) == sha256 else "is damaged: its sha256 is not the one it was written with"
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
