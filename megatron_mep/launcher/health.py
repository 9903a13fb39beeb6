"""What the ranks of an allocation say of their nodes, and which of them stand out; see launch/check_cluster.py."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

SLOW = 0.7
"""Share of the median below which a node is told of."""
MOST_CLOCK_S = 1.0
LEAST_SHM_GB = 1.0

Pairs = Mapping[tuple[str, str], float]
"""GB/s from one node to another and back."""


@dataclass(frozen=True)
class Health:
    """What a rank says of itself."""

    rank: int
    host: str
    device: str
    free_gb: float
    """Memory of the node that is free."""
    shm_gb: float
    """Free in /dev/shm, which workers and NCCL use."""
    clock_s: float = 0.0
    """Its clock ahead of the first rank's."""
    tflops: float = 0.0
    """Of a product of matrices in fp32."""


def neighbours(names: list[str]) -> list[tuple[str, str]]:
    """Each node with the next, the last with the first where there are three or more."""
    pairs = list(pairwise(names))
    return [*pairs, (names[-1], names[0])] if len(names) > 2 else pairs


def report(all_health: list[Health], pairs: Pairs, rates: Mapping[int, tuple[float, float]]) -> Iterator[str]:
    """Lines on nodes, pairs of them and all ranks."""
    first_s = all_health[0].clock_s
    for host, ranks in _by_host(all_health).items():
        one = ranks[0]
        speeds = ", ".join(f"{health.tflops:.3g}" for health in ranks)
        yield (f"{host}: {len(ranks)} ranks on {one.device}, {speeds} TFLOP/s; {one.free_gb:.1f} GB free, /dev/shm "
               f"{one.shm_gb:.1f} GB; clock {one.clock_s - first_s:+.3f} s")  # fmt: skip
    for (left, right), rate in pairs.items():
        yield f"{left} -> {right}: {rate:.3g} GB/s"
    for size, (seconds, bandwidth) in rates.items():
        yield f"all-reduce of {size:,} bytes: {1e3 * seconds:.3g} ms, bus bandwidth {bandwidth:.3g} GB/s"


def faults_of(all_health: list[Health], pairs: Pairs) -> Iterator[str]:
    """What stands out, by node."""
    speed, first_s = median(health.tflops for health in all_health), all_health[0].clock_s
    for host, ranks in _by_host(all_health).items():
        slow = [health for health in ranks if health.tflops < SLOW * speed]
        if slow:
            told = ", ".join(f"rank {health.rank} {health.tflops:.3g}" for health in slow)
            yield f"SLOW: {host} computes at {told} TFLOP/s, the median is {speed:.3g}"
        if abs(ranks[0].clock_s - first_s) > MOST_CLOCK_S:
            yield f"CLOCK: {host} is {ranks[0].clock_s - first_s:+.1f} s from the first node; start its time service"
        if ranks[0].shm_gb < LEAST_SHM_GB:
            yield f"MEMORY: {host} has {ranks[0].shm_gb:.2f} GB in /dev/shm; enlarge it, in containers by --shm-size"
    rate = median(pairs.values()) if pairs else 0.0
    for host in _by_host(all_health):
        own = [value for pair, value in pairs.items() if host in pair]
        # a slow node is slow with both of its neighbours; of two nodes alone nobody can say which it is
        if len(own) > 1 and max(own) < SLOW * rate:
            yield f"SLOW: {host} exchanges at {max(own):.3g} GB/s at most, the median is {rate:.3g}"


def _by_host(all_health: list[Health]) -> dict[str, list[Health]]:
    found: dict[str, list[Health]] = {}
    for health in all_health:
        found.setdefault(health.host, []).append(health)
    return found
