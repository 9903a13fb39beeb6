"""A SLURM of several nodes on one machine, thrown away after use: each node has namespaces of its own.

A node is a host name, a network card, a table of processes and a /dev/shm; it shares files with all others. It can be
powered off and booted, and its network be cut. Nothing outside the cluster's folder is changed.
"""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.slurm import configuration
from tests.slurm.configuration import LOGIN, address_of, node_names

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "setpriv", "unshare")
CGROUPS = Path("/sys/fs/cgroup")
SWITCH = "switch"
START_S = 60.0
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"


def why_not() -> str | None:
    """What keeps a cluster from being started here."""
    if os.geteuid() != 0:
        return "a throw-away SLURM needs root, for namespaces"
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"{', '.join(missing)} are not installed: `bash tests/slurm/run.sh` does" if missing else None


class Cluster:
    """Runs while it is entered.

    Args:
        folder: Its files, visible to all nodes; the path must be short, for sockets.
        num_nodes: Beside the login node, on which the controller runs.
    """

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self.folder, self.nodes = folder, node_names(num_nodes)
        self.has_ssh = shutil.which("sshd", path=PATH) is not None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> Self:
        try:
            self._write_files()
            self._start_munge()
            self._start_machine(
                SWITCH, "ip link add bridge type bridge && ip link set bridge up && exec sleep infinity"
            )
            wait_until(lambda: self._on_switch("ip", "link", "show", "bridge").returncode == 0, START_S, "a bridge")
            self._boot(LOGIN, "exec slurmctld -D")
            for node in self.nodes:
                self.boot(node)
            wait_until(lambda: len(self.idle_nodes()) == len(self.nodes), START_S, "idle nodes")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Calls a command on the login node."""
        return self.on(LOGIN, *command, **variables)

    def on(self, machine: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Calls a command on a machine."""
        return _call(*self.entering(machine), *command, environment=self.environment | variables)

    def entering(self, machine: str) -> list[str]:
        """What is put ahead of a command that is to run on a machine."""
        return ["nsenter", f"--target={self._init(machine)}", "--net", "--uts", "--mount", "--pid"]

    def told(self, *command: str) -> str:
        """What a command that must succeed prints on the login node."""
        done = self.call(*command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def idle_nodes(self) -> list[str]:
        """Those that wait for work."""
        return self.call("sinfo", "-h", "-N", "-t", "idle", "-p", "main", "-o", "%N").stdout.split()

    def power_off(self, node: str) -> None:
        """All that runs on it is gone at once."""
        os.kill(self._init(node), 9)
        self._processes.pop(node).wait()

    def boot(self, node: str) -> None:
        """Starts a node, for the first time or after it was powered off."""
        ssh = f"/usr/sbin/sshd -f {self.folder}/ssh/sshd_config; " if self.has_ssh else ""
        self._boot(node, f"mount -t tmpfs -o mode=1777 tmpfs /dev/shm; {ssh}exec slurmd -D -N {node}")

    def cut(self, node: str) -> None:
        """Pulls the plug of its network."""
        assert self._on_switch("ip", "link", "set", node, "down").returncode == 0, f"{node} has no plug"

    def join(self, node: str) -> None:
        """Plugs it in again."""
        assert self._on_switch("ip", "link", "set", node, "up").returncode == 0, f"{node} has no plug"

    def _write_files(self) -> None:
        for name in ("log", "state", "spool", "ssh", *(f"tmp/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        has_cgroups = (CGROUPS / "freezer").is_dir()
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.folder / "munge.key").chmod(0o400)
        if self.has_ssh:
            Path("/run/sshd").mkdir(exist_ok=True)
            key = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "ssh/identity"))
            assert _call(*key, environment=self.environment).returncode == 0, "ssh-keygen makes no key"
        texts = {
            "hosts": configuration.hosts(self.nodes),
            # nobody outside the cluster is asked for names
            "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
            "cgroup.conf": configuration.cgroup_conf(),
            "slurm.conf": configuration.slurm_conf(self.folder, self.nodes, has_cgroups),
            "ssh/ssh_config": configuration.ssh_config(self.folder),
            "ssh/sshd_config": configuration.sshd_config(self.folder),
        }
        for name, text in texts.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def _start_munge(self) -> None:
        files = [f"--{name}={self.folder}/munge.{end}" for name, end in
                 (("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"),
                  ("seed-file", "seed"))]  # fmt: skip
        self._start("munged", ["munged", "--foreground", "--force", *files])
        wait_until((self.folder / "munge.socket").exists, START_S, "munge")

    def _boot(self, name: str, command: str) -> None:
        mounted = {"hosts": "/etc/hosts", "nsswitch.conf": "/etc/nsswitch.conf"}
        if self.has_ssh:
            mounted["ssh/ssh_config"] = "/etc/ssh/ssh_config"
        mounts = "".join(f"mount --bind {self.folder}/{own} {place}; " for own, place in mounted.items())
        card = "until ip link set eth0 up 2>/dev/null; do sleep 0.02; done; ip link set lo up; "
        address = f"ip address add {address_of(name)}/24 dev eth0; "
        self._start_machine(name, f"hostname {name}; {mounts}{card}{address}{command}")
        pid = str(self._init(name))
        plug = ("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", pid)
        assert self._on_switch(*plug).returncode == 0, f"{name} gets no network card"
        self._on_switch("ip", "link", "set", name, "master", "bridge", "up")

    def _start_machine(self, name: str, command: str) -> None:
        # the first process of a machine takes all others with it
        own = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._start(name, [*own, "sh", "-c", command])
        wait_until(lambda: bool(self._children(name)), START_S, name)

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as stream:
            self._processes[name] = subprocess.Popen(
                # ends with the tests, even where these are killed
                ["setpriv", "--pdeathsig=KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=self.environment,
                # Ctrl-C is for the tests, which then end the cluster
                start_new_session=True,
            )

    def _on_switch(self, *command: str) -> subprocess.CompletedProcess[str]:
        return _call("nsenter", f"--target={self._init(SWITCH)}", "--net", *command, environment=self.environment)

    def _init(self, machine: str) -> int:
        return int(self._children(machine)[0])

    def _children(self, machine: str) -> list[str]:
        pid = self._processes[machine].pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def _end(self) -> None:
        for name, process in self._processes.items():
            for child in self._children(name) if process.poll() is None else ():
                os.kill(int(child), 9)
            process.kill()
            process.wait()
        self._processes.clear()
        roots = [root for node in self.nodes for root in CGROUPS.glob(f"*/slurm_{node}")]
        for root in roots:
            for group in sorted([root, *(path for path in root.rglob("*") if path.is_dir())], reverse=True):
                wait_until(lambda group=group: _removed(group), START_S, f"the end of {group}")


def wait_until(holds: Callable[[], bool], at_most_s: float, what: str, poll_s: float = 0.1) -> None:
    """Waits for something to hold, and fails where it does not in time."""
    until_s = time.monotonic() + at_most_s
    while not holds():
        assert time.monotonic() < until_s, f"waited {at_most_s:.0f} s for {what}"
        time.sleep(poll_s)


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _call(*command: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
