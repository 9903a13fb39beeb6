"""By what a checkpoint was written, as a small file that a person can read."""

import json
import platform
import socket
from datetime import UTC, datetime
from importlib.metadata import version

FILE = "written_by.json"
PACKAGES = ("megatron-mep", "megatron-core", "deepspeed", "torch")


def written_by() -> str:
    """The file's text: time, host and versions."""
    facts = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }
    return json.dumps(facts, indent=1) + "\n"
