"""The Git commit of the sources that this package runs from, and what differs from it."""

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
TIMEOUT_S = 10.0
"""For each question that Git is asked."""
ELSEWHERE = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"})
"""Variables by which Git would tell of another repository than the one that a folder is in."""


@dataclass(frozen=True)
class Commit:
    """What a package was run from."""

    sha: str
    """In hexadecimal digits."""
    changed: bool | None
    """Whether files of the package differ from it or are not in it; `None` where Git did not tell."""

    def __str__(self) -> str:
        changes = {None: ", changes unknown", True: " with changes", False: ""}
        return f"{self.sha}{changes[self.changed]}"


@cache
def commit_of_package() -> Commit | None:
    """That of this package, asked once in a process; `None` where Git tells none, as of an installed package."""
    return commit_of(PACKAGE)


def commit_of(package: Path) -> Commit | None:
    """The commit of a package's folder.

    `None` where its files are in no repository, though the folder may lie in one, where there is no Git, and where Git
    refuses to answer, as it does of a repository of another user.
    """
    known = _said(package, "ls-files", "--error-unmatch", "__init__.py") is not None
    sha = _said(package, "rev-parse", "HEAD") if known else None
    if sha is None:
        return None
    changes = _said(package, "status", "--porcelain", "--untracked-files=normal", ".")
    return Commit(sha.strip(), None if changes is None else bool(changes))


def differences(package: Path = PACKAGE) -> str | None:
    """What differs from the commit in the whole repository, file by file and line by line; `None` where Git fails."""
    status, lines = (_said(package, *asked, timeout_s=60) for asked in (("status", "--porcelain"), ("diff", "HEAD")))
    return None if status is None or lines is None else "\n".join(filter(None, (status, lines)))


def _said(folder: Path, *question: str, timeout_s: float | None = None) -> str | None:
    """What Git answers in a folder; `None` where it does not. Nothing is written, not even Git's index."""
    environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "--no-optional-locks", *question],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s or TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout
