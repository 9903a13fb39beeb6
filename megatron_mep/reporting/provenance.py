"""Where a page's numbers are from, and by what it was written."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from megatron_mep.commit import Commit, commit_of_package
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
    commit: Commit | None
    """Of the sources of this package; `None` where Git tells none."""

    @classmethod
    def now(cls, command: str, files: Sequence[Read]) -> "Provenance":
        """That of a report which is written now."""
        versions = {"Python": platform.python_version(), **{name: _version(name) for name in PROGRAMS}}
        return cls(command, datetime.now(UTC), files, versions, commit_of_package())


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(run from its source folder)"
