"""Where a rank runs, as the others are told."""

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """A rank's process."""

    rank: int
    host: str
    process: int
    namespace: str
    """Within which the process's number means something."""
    world_size: int
    """Ranks of the job, as this one was told."""

    @classmethod
    def here(cls, rank: int, world_size: int) -> "Place":
        """This process."""
        return cls(rank, socket.gethostname(), os.getpid(), _namespace(), world_size)

    @classmethod
    def of(cls, text: bytes) -> "Place":
        """What `text` was written for."""
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        """For a store."""
        return json.dumps(asdict(self))

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended; one that cannot be seen from here counts as alive."""
        if (self.host, self.namespace) != (socket.gethostname(), _namespace()) or not self.namespace:
            return False
        try:
            stat = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return True
        # its name, in brackets, may hold anything; a zombie waits for its launcher to look
        return stat.rpartition(")")[2].split()[0] in "ZX"

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host})"


def _namespace() -> str:
    """Empty where the system does not tell, and so does not list processes in /proc either."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
