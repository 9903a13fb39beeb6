"""The folders of checkpoints: written beside and renamed into place, so that a kill at any instant leaves only whole ones.

<run>/checkpoints/step_00000500/   Megatron-core torch_dist files, run.yaml, progress.json, manifest.json
<run>/checkpoints/latest           the name of the newest, written last
"""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from megatron_mep.config.errors import CheckpointError, Mistake

LATEST = "latest"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step_(\d{8})")


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


def publish(root: Path, step: int, keep: int | None) -> Path:
    """Seals what was written since `begin`, puts it in place, names it the latest and removes the oldest beyond `keep`."""
    partial, final = _partial(root, step), step_folder(root, step)
    _seal(partial)
    replaced = root / f".{final.name}.replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    _sync(root)
    write_atomically(root / LATEST, final.name + "\n")
    shutil.rmtree(replaced, ignore_errors=True)
    for old in steps_in(root)[:-keep] if keep else ():
        shutil.rmtree(step_folder(root, old))
    return final


def find(path: Path) -> Path:
    """The checkpoint that a path means: itself, or the latest of a run's folder or of its `checkpoints`."""
    for root in (path, path / "checkpoints"):
        if (root / MANIFEST).is_file():
            return root
        if (root / LATEST).is_file():
            return root / (root / LATEST).read_text().strip()
    raise CheckpointError(
        Mistake(str(path), None, "holds no checkpoint", "give a run's folder, or a folder step_... of its checkpoints")
    )


def verify(folder: Path) -> None:
    """Checks every file of a checkpoint against its manifest; a `CheckpointError` names each that is missing or damaged."""
    try:
        listed = json.loads((folder / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(
            Mistake(
                str(folder / MANIFEST), None, "is missing or unreadable: this is no whole checkpoint", _remedy(folder)
            )
        ) from None
    damaged = [
        Mistake(str(folder / name), None, f"is {fault}", _remedy(folder))
        for name, expected in listed.items()
        if (fault := _fault(folder / name, expected))
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


def _seal(folder: Path) -> None:
    """Lists every file with its size and hash, once all of them are on the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for file in files:
        _sync(file)
    listed = {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}
    write_atomically(folder / MANIFEST, json.dumps({"format": 1, "files": listed}, indent=1))
    _sync(folder)


def _fault(file: Path, expected: dict[str, object]) -> str | None:
    if not file.is_file():
        return "missing"
    size = file.stat().st_size
    if size != expected["bytes"]:
        return f"damaged: {size} bytes in place of {expected['bytes']}"
    return None if _sha256(file) == expected["sha256"] else "damaged: its sha256 is not that of the manifest"


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
