"""By what a checkpoint was written, as a small file that a person can read."""

import json
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from megatron_mep.commit import Commit

FILE = "written_by.json"
PACKAGES = ("megatron-mep", "megatron-core", "deepspeed", "torch")


@dataclass(frozen=True)
class Writer:
    """The programs that wrote a checkpoint."""

    versions: Mapping[str, str]
    """By name; empty where the file does not say."""
    commit: Commit | None
    """Of this package's sources; `None` where Git told none, and in files of versions that did not ask."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Writer":
        """What the file's facts say of it."""
        commit = facts.get("commit")
        return cls(facts.get("versions", {}), Commit(**commit) if commit else None)

    def __str__(self) -> str:
        told = [f"{name} {version}" for name, version in self.versions.items()] or ["unknown versions"]
        return ", ".join([*told, f"commit {self.commit or 'unknown'}"])


def written_by(commit: Commit | None) -> str:
    """The file's text: time, host, versions and the commit of this package's sources."""
    facts = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "commit": asdict(commit) if commit else None,
    }
    return json.dumps(facts, indent=1) + "\n"
