"""Where a page's numbers are from, and by what it was written."""

import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import megatron_mep
from megatron_mep.reporting.records import Read

PROGRAMS = ("megatron_mep", "matplotlib", "plotly")


@dataclass(frozen=True)
class Provenance:
    """What a page tells about itself."""

    command: str
    """The command line that wrote the report."""
    written: datetime
    files: Sequence[Read]
    versions: Mapping[str, str]
    """Of the programs that wrote the report."""
    commit: str | None
    """Of the sources of this package; `None` where they are not in a Git repository."""

    @classmethod
    def now(cls, command: str, files: Sequence[Read]) -> "Provenance":
        """That of a report which is written now."""
        versions = {"Python": platform.python_version(), **{name: _version(name) for name in PROGRAMS}}
        return cls(command, datetime.now(UTC), files, versions, _commit(Path(megatron_mep.__path__[0])))


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(run from its source folder)"


def _commit(folder: Path) -> str | None:
    """The commit of a folder that is under version control, and whether files differ from it."""
    git = shutil.which("git")
    if git is None or _said(git, folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _said(git, folder, "rev-parse", "HEAD")
    changed = _said(git, folder, "status", "--porcelain", "--untracked-files=no", ".")
    return f"{commit} with changes" if commit and changed else commit


def _said(git: str, folder: Path, *arguments: str) -> str | None:
    """What Git answers; `None` where it refuses."""
    done = subprocess.run([git, "-C", str(folder), *arguments], capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.strip() if done.returncode == 0 else None
