"""Looks at the nodes of an allocation and the network between them, before anybody blames the code that trains.

  srun --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 python launch/check_cluster.py
  deepspeed --hostfile hosts --no_local_rank launch/check_cluster.py

Started as training is, one process a rank. Tells of every node memory, /dev/shm, clock and speed, then how fast
neighbouring nodes exchange data, and what an all-reduce over all ranks comes to. Ends with 1 where a node is silent or
slow, and names it; the last line says so.
"""

import argparse
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta

import torch
from torch import Tensor, distributed

from megatron_mep.config.errors import UserError
from megatron_mep.launcher.health import Health, faults_of, neighbours, report
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.hostlist import hosts

MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}
PAIR_BYTES = {"cuda": 2**28, "cpu": 2**23}
REPEATS = 5


def main() -> int:
    """The exit code; the first rank tells what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="how long each look may take (120)")
    options = parser.parse_args()
    environment = Environment.discover(os.environ)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", environment.local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    limit = Limit(environment.rank, options.timeout)
    with limit.on("meeting the others"):
        store = _met(environment, options.timeout)
    distributed.init_process_group("nccl" if cuda else "gloo", store=distributed.PrefixStore("ranks", store),
                                   rank=environment.rank, world_size=environment.world_size,
                                   timeout=timedelta(seconds=10 * options.timeout))  # fmt: skip
    try:
        return _look(store, environment, device, limit)
    finally:
        distributed.destroy_process_group()


def _met(environment: Environment, timeout_s: float) -> distributed.Store:
    """The store of all ranks, once every one has come; else the first says who has not."""
    first = environment.rank == 0
    # torchrun keeps one there already
    keeps = first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = distributed.TCPStore(environment.master_addr, environment.master_port, environment.world_size, keeps,
                                 timedelta(seconds=timeout_s), wait_for_workers=False)  # fmt: skip
    store.set(f"here/{environment.rank}", socket.gethostname())
    if first:
        until = time.monotonic() + timeout_s - 5
        missing = list(range(environment.world_size))
        while missing and time.monotonic() < until:
            missing = [rank for rank in missing if not store.check([f"here/{rank}"])]
            time.sleep(0.1)
        store.set("missing", json.dumps(missing))
    missing = json.loads(store.get("missing"))
    if missing:
        if first:
            _tell(f"SILENT: {', '.join(places(missing, environment, os.environ))} did not come in {timeout_s:g} s")
        raise SystemExit(1)
    return store


def places(ranks: list[int], environment: Environment, environ: Mapping[str, str]) -> list[str]:
    """Ranks by number, and by node where SLURM tells."""
    nodes, on_node = environ.get("SLURM_JOB_NODELIST"), environment.local_world_size
    names = hosts(nodes) if nodes and on_node else []
    at = {rank: f" on {names[rank // on_node]}" for rank in ranks if on_node and rank // on_node < len(names)}
    return [f"rank {rank}{at.get(rank, '')}" for rank in ranks]


def _look(store: distributed.Store, environment: Environment, device: torch.device, limit: "Limit") -> int:
    told: dict[tuple[str, str], float] = {}
    with limit.on("a product of matrices"):
        tflops = _tflops(device)
    with limit.on("a barrier"):
        distributed.barrier()
        now = time.time()
    mine = Health(environment.rank, socket.gethostname(), _device(device), _free_gb(), _shm_gb(), now, tflops)
    store.set(f"health/{environment.rank}", json.dumps(asdict(mine)))
    all_health = [Health(**json.loads(store.get(f"health/{rank}"))) for rank in range(environment.world_size)]
    leaders = {health.host: health.rank for health in reversed(all_health)}
    names = sorted(leaders, key=leaders.__getitem__)
    for left, right in neighbours(names):
        with limit.on(f"sending from {left} to {right}"):
            rate = _exchange(leaders[left], leaders[right], environment.rank, device)
        if environment.rank == leaders[left]:
            store.set(f"pair/{left}/{right}", str(rate))
        told[left, right] = float(store.get(f"pair/{left}/{right}"))
    rates: dict[int, tuple[float, float]] = {}
    for size in (2**10, 2**20, PAIR_BYTES[device.type]):
        with limit.on(f"an all-reduce of {size:,} bytes"):
            rates[size] = _all_reduce(size, environment.world_size, device)
    if environment.rank == 0:
        for line in report(all_health, told, rates):
            _tell(line)
    faults = list(faults_of(all_health, told))
    if environment.rank == 0:
        _tell("\n".join(faults) if faults else f"all {len(names)} nodes answer alike")
    # the first rank keeps the store, which others may still read
    distributed.barrier()
    return 1 if faults else 0


class Limit:
    """Ends a rank that is stuck, and says where."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        self._who, self._timeout_s = f"{socket.gethostname()}, rank {rank}", timeout_s

    def on(self, what: str) -> "_Running":
        """A look that is limited while it is entered."""
        return _Running(threading.Timer(self._timeout_s, self._end, [what]))

    def _end(self, what: str) -> None:
        _tell(f"SILENT: {self._who} is stuck in {what}, after {self._timeout_s:g} s")
        os._exit(1)


class _Running:
    def __init__(self, timer: threading.Timer) -> None:
        timer.daemon, self._timer = True, timer

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _tflops(device: torch.device) -> float:
    size = MATMUL_SIZE[device.type]
    matrix = torch.ones(size, size, device=device)
    return 2e-12 * size**3 / _time_of(lambda: matrix @ matrix, device)


def _exchange(left: int, right: int, rank: int, device: torch.device) -> float:
    """GB/s from one rank to another and back; 0 on others."""
    if rank not in (left, right):
        return 0.0
    buffer = torch.zeros(PAIR_BYTES[device.type] // 4, device=device)

    def there_and_back() -> Tensor:
        for sender in (left, right):
            if rank == sender:
                distributed.send(buffer, right if rank == left else left)
            else:
                distributed.recv(buffer, sender)
        return buffer

    return 2e-9 * PAIR_BYTES[device.type] / _time_of(there_and_back, device)


def _all_reduce(size: int, world_size: int, device: torch.device) -> tuple[float, float]:
    """Seconds, and what each rank sends and receives in GB/s by a ring."""
    buffer = torch.zeros(size // 4, device=device)
    seconds = _time_of(lambda: distributed.all_reduce(buffer), device)
    return seconds, 2e-9 * (world_size - 1) / world_size * size / seconds


def _time_of(act: Callable[[], object], device: torch.device) -> float:
    """The shortest of a few, in seconds, after one that is not counted."""
    times = []
    for _ in range(REPEATS + 1):
        _finish(device)
        start = time.perf_counter()
        act()
        _finish(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _free_gb() -> float:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


def _shm_gb() -> float:
    return shutil.disk_usage("/dev/shm").free / 1e9


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"check_cluster: {error}")
