"""The folders of checkpoints: written beside and renamed into place, so that a kill at any instant leaves whole ones.

<run>/checkpoints/step_00000500/   Megatron-core torch_dist files, run.yaml, progress.json, checksums.json
<run>/checkpoints/latest           the name of the newest, written last
<run>/checkpoints/.step_...        what is being written, or removed; of no value once `latest` names another
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from megatron_mep.config.errors import CheckpointError, Mistake

LATEST = "latest"
MANIFEST = "checksums.json"
_NAME = re.compile(r"step_(\d{8})")

Checksums = dict[str, tuple[int, str]]
"""Bytes and sha256 of files, by their names in the checkpoint's folder."""


def step_folder(root: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return root / f"step_{step:08d}"


def steps_in(root: Path) -> list[int]:
    """The steps that have a checkpoint in place, ascending."""
    names = (_NAME.fullmatch(entry.name) for entry in root.iterdir()) if root.is_dir() else ()
    return sorted(int(match.group(1)) for match in names if match)


def begin(root: Path, step: int) -> Path:
    """An empty folder to write the checkpoint of a step in, out of any reader's sight."""
    partial = _partial(root, step)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def publish(root: Path, step: int, keep: int | None, known: Checksums | None = None) -> Path:
    """Puts in place what was written since `begin`, names it the latest, and removes the oldest beyond `keep`.

    `known` are the checksums that other ranks took of files that they wrote. Checkpoints of later steps stay: they are
    there where a run was sent back to an earlier one.
    """
    partial, final = _partial(root, step), step_folder(root, step)
    _seal(partial, known or {})
    if final.exists():
        _set_aside(final)
    partial.rename(final)
    _sync(root)
    write_atomically(root / LATEST, final.name + "\n")
    older = [found for found in steps_in(root) if found < step]
    for found in older[::-1][keep - 1 :] if keep else ():
        _set_aside(step_folder(root, found))
    for leftover in root.glob(".step_*"):
        shutil.rmtree(leftover)
    return final


def find(path: Path) -> Path:
    """The checkpoint that a path means: itself, or the latest of a run's folder or of its `checkpoints`."""
    for root in (path, path / "checkpoints"):
        if (root / MANIFEST).is_file():
            return root
        if (root / LATEST).is_file():
            return _latest(root)
    raise CheckpointError(
        Mistake(str(path), None, "holds no checkpoint", "give a run's folder, or a folder step_... of its checkpoints")
    )


def checksums(files: Iterable[Path]) -> Checksums:
    """The checksums of files, once they are on the disk."""
    found: Checksums = {}
    for file in files:
        _sync(file)
        found[file.name] = file.stat().st_size, _sha256(file)
    return found


def verify(folder: Path, rank: int = 0, world_size: int = 1) -> None:
    """Checks the files of a checkpoint; a `CheckpointError` names each that is missing or damaged.

    Each of `world_size` ranks checks its share of them.
    """
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        shared = [(name, entry["bytes"], entry["sha256"]) for name, entry in sorted(listed.items())[rank::world_size]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        rule = "is missing or unreadable: this is no whole checkpoint"
        raise CheckpointError(Mistake(str(folder / MANIFEST), None, rule, _remedy(folder))) from None
    damaged = [
        Mistake(str(folder / name), None, f"is {fault}", _remedy(folder))
        for name, size, sha256 in shared
        if (fault := _fault(folder / name, size, sha256))
    ]
    if damaged:
        raise CheckpointError(damaged)


def write_atomically(file: Path, text: str) -> None:
    """Writes a small file beside and renames it into place."""
    beside = file.with_name(f".{file.name}.partial")
    with beside.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(file)


def _partial(root: Path, step: int) -> Path:
    return root / f".{step_folder(root, step).name}.partial"


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.aside")


def _set_aside(folder: Path) -> None:
    """Takes a whole checkpoint out of place in one go: removing it takes longer, and may be cut short."""
    shutil.rmtree(_aside(folder), ignore_errors=True)
    folder.rename(_aside(folder))


def _latest(root: Path) -> Path:
    """What `latest` names; where a kill came between the two renames that replace it, what was set aside."""
    named = root / (root / LATEST).read_text(encoding="utf-8").strip()
    for folder in (named, _aside(named)):
        if folder.is_dir():
            return folder
    raise CheckpointError(
        Mistake(str(root / LATEST), named.name, "names a checkpoint that is not there", _remedy(named))
    )


def _seal(folder: Path, known: Checksums) -> None:
    """Lists every file with its checksum."""
    files = known | checksums(file for file in folder.iterdir() if file.name not in known)
    listed = {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in sorted(files.items())}
    write_atomically(folder / MANIFEST, json.dumps({"format": 1, "files": listed}, indent=1))
    _sync(folder)


def _fault(file: Path, expected_size: int, sha256: str) -> str | None:
    if not file.is_file():
        return "missing"
    size = file.stat().st_size
    if size != expected_size:
        return f"damaged: {size} bytes in place of {expected_size}"
    return None if _sha256(file) == sha256 else "damaged: its sha256 is not the one it was written with"


def _remedy(folder: Path) -> str:
    others = [step for step in steps_in(folder.parent) if step_folder(folder.parent, step) != folder]
    if not others:
        return "restore it from a copy, or remove the folder and train again"
    newest = step_folder(folder.parent, others[-1])
    return f"restore it from a copy, or remove {folder} and write {newest.name} into {folder.parent / LATEST}"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
