"""Where the ranks of a job meet before anything else: all of them, or an error that names those that are missing."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from torch.distributed import DistError, HashStore, PrefixStore, Store, TCPStore

from megatron_mep.config.errors import Mistake, RanksError
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.place import Place

JOB, VERDICT, READ = "job", "verdict", "read"
"""Keys of the store: whose it is; whether all ranks are there, or why they will not be; how many have read that."""
ALL_HERE = "all here"
NUM_PORTS = 8
FIRST_PORT, LAST_PORT = 10000, 29999
"""Below 32768: from there on the kernel hands ports out to anyone."""
ANSWER_S, POLL_S = 5.0, 0.2
"""How long a store may take to answer, and how often ranks look."""
REMEDY = "look into their logs and at their nodes, and start the job again"


def meet(environment: Environment, limit_s: float) -> Store:
    """The store of the job, once all its ranks are there; a `RanksError` where they are not within the limit."""
    if environment.world_size == 1:
        return HashStore()
    until_s = time.monotonic() + limit_s
    rank, size = environment.rank, environment.world_size
    store = _store(environment, until_s)
    # the store of torchrun's agent outlives the attempt
    room = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    try:
        verdict = _gathered(room, environment, until_s, limit_s)
        if verdict and rank == 0:
            # the others that are there read it here
            others = sum(room.check([_place_of(other)]) for other in range(1, size))
            _wait_for(lambda: room.add(READ, 0) >= others, time.monotonic() + ANSWER_S)
    except DistError as error:
        verdict = f"ended before {size} ranks were there: rank 0 has left ({_first_line(error)})"
    if verdict:
        raise RanksError(Mistake("job.startup_minutes", round(limit_s / 60, 2), verdict, REMEDY))
    return store


def ports(environment: Environment) -> Iterator[int]:
    """The ports at which rank 0 may be, in the order in which all ranks try them.

    Only a job that has a number can be told from another one that is met at a port instead.
    """
    yield environment.master_port
    if _job():
        spread = LAST_PORT - FIRST_PORT + 1
        yield from (FIRST_PORT + (environment.master_port - FIRST_PORT + 997 * n) % spread for n in range(1, NUM_PORTS))


def _gathered(room: Store, environment: Environment, until_s: float, limit_s: float) -> str:
    """Empty once all ranks are there, which rank 0 finds out for all."""
    rank, size = environment.rank, environment.world_size
    here = Place.here(rank, size)
    if room.add(f"claims of rank {rank}", 1) > 1:
        other = Place.of(room.get(_place_of(rank)))
        room.set(
            VERDICT, f"will not help: {other}, process {other.process}, and {here}, process {here.process}, are one"
        )
    room.set(_place_of(rank), here.text)
    if rank == 0:
        keys = [_place_of(other) for other in range(size)]
        _wait_for(lambda: room.check(keys) or room.check([VERDICT]), until_s)
        room.compare_set(VERDICT, "", _verdict(room, environment, limit_s) or ALL_HERE)
    # rank 0 may have started later, and then waits for longer
    elif not _wait_for(lambda: room.check([VERDICT]), until_s + limit_s):
        return f"ended before {size} ranks were there, and rank 0 says nothing"
    verdict = room.get(VERDICT).decode()
    if rank:
        room.add(READ, 1)
    return "" if verdict == ALL_HERE else verdict


def _verdict(room: Store, environment: Environment, limit_s: float) -> str:
    there = {
        rank: Place.of(room.get(key)) for rank in range(environment.world_size) if room.check([key := _place_of(rank)])
    }
    others = [place for place in there.values() if place.world_size != environment.world_size]
    if others:
        counts = ", ".join(f"{place} counts {place.world_size}" for place in others)
        return f"will not help: rank 0 counts {environment.world_size} ranks, {counts}"
    missing = [rank for rank in range(environment.world_size) if rank not in there]
    if not missing:
        return ""
    named = ", ".join(f"rank {rank} ({_host_of(rank, there, environment)})" for rank in missing)
    return (
        f"were over after {limit_s:.0f} s, {len(there)} of {environment.world_size} ranks being there; missing: {named}"
    )


def _host_of(rank: int, there: dict[int, Place], environment: Environment) -> str:
    """Where a missing rank should be."""
    if environment.hosts_of_ranks:
        return environment.hosts_of_ranks[rank]
    local = environment.local_world_size
    same_node = (place.host for other, place in there.items() if local and other // local == rank // local)
    return next(same_node, f"none of node {rank // local} is there" if local else "host unknown")


def _store(environment: Environment, until_s: float) -> Store:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun's agent has the port, and its store is up before the ranks are
        return _client(environment, environment.master_port)
    return _hosted(environment) if environment.rank == 0 else _found(environment, until_s)


def _hosted(environment: Environment) -> Store:
    errors = []
    for port in ports(environment):
        try:
            store = _client(environment, port, is_master=True)
        except DistError as error:
            errors.append(f"{port}: {_first_line(error)}")
        else:
            store.set(JOB, _job())
            return store
    rule = f"is no port at which rank 0 can wait for the others ({'; '.join(errors)})"
    remedy = f"choose another one, and start rank 0 on MASTER_ADDR={environment.master_addr}"
    raise RanksError(Mistake("MASTER_PORT", environment.master_port, rule, remedy))


def _found(environment: Environment, until_s: float) -> Store:
    while time.monotonic() < until_s:
        for port in ports(environment):
            if _listens(environment.master_addr, port):
                store = _client_in_time(environment, port)
                if store is not None and _is_ours(store):
                    return store
        time.sleep(POLL_S)
    tried = ", ".join(map(str, ports(environment)))
    rule = f"is where rank 0 should be, and it was not there in time (ports {tried})"
    raise RanksError(Mistake("MASTER_ADDR", environment.master_addr, rule, REMEDY))


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), ANSWER_S):
            return True
    except OSError:
        return False


def _client_in_time(environment: Environment, port: int) -> Store | None:
    """A connection; `None` where something else listens, which may keep torch waiting without end."""
    found: list[Store] = []

    def connect() -> None:
        try:
            found.append(_client(environment, port))
        except DistError:
            return

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(2 * ANSWER_S)
    return found[0] if found else None


def _is_ours(store: Store) -> bool:
    try:
        if not _wait_for(lambda: store.check([JOB]), time.monotonic() + ANSWER_S):
            return False
        theirs = store.get(JOB).decode()
    except DistError:
        return False
    # a launcher by ssh hands no number on
    return theirs == _job() or not (theirs and _job())


def _client(environment: Environment, port: int, is_master: bool = False) -> Store:
    timeout = timedelta(seconds=ANSWER_S)
    return TCPStore(environment.master_addr, port, environment.world_size, is_master, timeout, wait_for_workers=False)


def _job() -> str:
    """The job and its step, by number; empty where nothing numbers them."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "PMIX_NAMESPACE")
    return " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)


def _wait_for(holds: Callable[[], bool], until_s: float) -> bool:
    while not holds():
        if time.monotonic() >= until_s:
            return False
        time.sleep(POLL_S)
    return True


def _place_of(rank: int) -> str:
    return f"place {rank}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
