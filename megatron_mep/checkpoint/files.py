"""The folders of checkpoints: written beside and renamed into place, so that a kill at any instant leaves whole ones.

<run>/checkpoints/step_00000500/   Megatron-core torch_dist files, run.yaml, progress.json, ..., checksums.json
<run>/checkpoints/latest           the name of the newest, written last
<run>/checkpoints/.attempt_.../    what is being written, or removed; of no value once `latest` names another
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from megatron_mep.checkpoint.attempt import PREFIX, Attempt, aside
from megatron_mep.checkpoint.disk import sync, write_atomically
from megatron_mep.checkpoint.manifest import MANIFEST, Checksums, Fault, faults, seal
from megatron_mep.checkpoint.progress import FILE
from megatron_mep.config.errors import CheckpointError, Mistake

LATEST = "latest"
RUN_FILE = "run.yaml"
READ_FIRST = (RUN_FILE, FILE, ".metadata", "metadata.json")
"""The small files that are believed before all others are looked at."""
_NAME = re.compile(r"step_(\d{8})")

FaultsOf = Callable[[Path], list[Fault]]
"""What is wrong with the files of a checkpoint."""


def step_folder(root: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return root / f"step_{step:08d}"


def steps_in(root: Path) -> list[int]:
    """The steps that have a checkpoint in place, ascending."""
    names = (_NAME.fullmatch(entry.name) for entry in root.iterdir()) if root.is_dir() else ()
    return sorted(int(match.group(1)) for match in names if match)


def take_over(root: Path) -> Attempt:
    """The attempt that writes checkpoints from here on; what earlier ones left is put in order."""
    attempt = Attempt.start(root)
    with attempt.writing():
        latest = _latest(root)
        if latest is not None and latest.name.endswith(aside("")):
            latest.rename(root / latest.name.removesuffix(aside("")))
        attempt.clear()
    return attempt


def begin(attempt: Attempt, step: int) -> Path:
    """An empty folder to write the checkpoint of a step in, out of any reader's sight."""
    partial_folder = _partial(attempt, step)
    with attempt.writing():
        shutil.rmtree(partial_folder, ignore_errors=True)
        partial_folder.mkdir()
    return partial_folder


def publish(attempt: Attempt, step: int, keep: int | None, known: Checksums | None = None) -> Path:
    """Puts in place what was written since `begin`, names it the latest, and removes the oldest beyond `keep`.

    `known` are the checksums that other ranks took of files that they wrote. Checkpoints of later steps stay: they are
    there where a run was sent back to an earlier one.
    """
    root, final = attempt.root, step_folder(attempt.root, step)
    with attempt.writing():
        seal(_partial(attempt, step), known or {})
    with attempt.writing():
        if final.exists():
            attempt.set_aside(final)
        _partial(attempt, step).rename(final)
        sync(root)
        write_atomically(root / LATEST, final.name + "\n", beside=attempt.folder / LATEST)
        older = [found for found in steps_in(root) if found < step]
        for found in older[::-1][keep - 1 :] if keep else ():
            attempt.set_aside(step_folder(root, found))
        attempt.clear()
    return final


def locate(path: Path) -> Path:
    """The checkpoint that a path means: itself, or the latest of a run's folder or of its `checkpoints`."""
    if (path / MANIFEST).is_file() or (path.is_dir() and _NAME.fullmatch(path.resolve().name)):
        return path
    latest = next((found for root in (path, path / "checkpoints") if (found := _latest(root))), None)
    if latest is None:
        remedy = "give a run's folder, or a folder step_... of its checkpoints"
        raise CheckpointError(Mistake(str(path), None, "holds no checkpoint", remedy))
    return latest


def find(path: Path) -> Path:
    """The same, once the small files are whole that say what the others hold."""
    folder = locate(path)
    _refuse(faults(folder, only=READ_FIRST), folder, faults)
    return folder


def exists(root: Path) -> bool:
    """Whether a run has come to a checkpoint."""
    return (root / LATEST).is_file() or bool(steps_in(root))


def newest(root: Path) -> Path | None:
    """The latest checkpoint in the folder of a run's; `None` where there is none yet."""
    return locate(root) if exists(root) else None


def verify(folder: Path, faults_of: FaultsOf = faults) -> None:
    """A `CheckpointError` names each missing, damaged or foreign file, and the newest whole checkpoint of the run."""
    _refuse(faults_of(folder), folder, faults_of)


def _refuse(found: list[Fault], folder: Path, faults_of: FaultsOf) -> None:
    if found:
        remedy = _remedy(folder, faults_of)
        raise CheckpointError(Mistake(str(fault.file), None, fault.rule, remedy) for fault in found)


def _remedy(folder: Path, faults_of: FaultsOf) -> str:
    match = _NAME.match(folder.name)
    whole = _newest_whole(folder.parent, int(match.group(1)) if match else 0, faults_of)
    if whole is None:
        return "restore it from a copy, or remove the folder and train again"
    return f"restore it from a copy, or write {whole}, the newest whole one, into {folder.parent / LATEST}"


def _newest_whole(root: Path, step: int, faults_of: FaultsOf) -> str | None:
    """The name of the newest whole checkpoint before a step's; where there is none, of the newest one after it."""
    others = sorted((other for other in steps_in(root) if other != step), key=lambda other: (other > step, -other))
    return next((folder.name for other in others if not faults_of(folder := step_folder(root, other))), None)


def _partial(attempt: Attempt, step: int) -> Path:
    return attempt.folder / f"{step_folder(attempt.root, step).name}.partial"


def _latest(root: Path) -> Path | None:
    """What `latest` names; where a kill came between the two renames that replace it, what was set aside.

    A kill may also come before the first one is named: it is the newest.
    """
    if not (root / LATEST).is_file():
        return step_folder(root, steps_in(root)[-1]) if steps_in(root) else None
    name = (root / LATEST).read_text(encoding="utf-8", errors="replace").strip()
    if _NAME.fullmatch(name):
        for folder in (root / name, *root.glob(f"{PREFIX}*/**/{aside(name)}")):
            if folder.is_dir():
                return folder
    whole = _newest_whole(root, 0, faults)
    remedy = f"write {whole}, the newest whole one, into it" if whole else "restore it from a copy"
    raise CheckpointError(Mistake(str(root / LATEST), name, "names a checkpoint that is not there", remedy))
