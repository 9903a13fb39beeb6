import socket
from collections.abc import Iterator
from threading import Thread
from time import monotonic
from unittest.mock import patch

import pytest
from torch.distributed import HashStore, Store

from megatron_mep.config.errors import RanksError
from megatron_mep.parallel import rendezvous
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.place import Place
from megatron_mep.parallel.rendezvous import meet, ports


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "POLL_S", 0.01)
    monkeypatch.setattr(rendezvous, "ANSWER_S", 0.3)
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """In place of one over the network, for ranks that are threads."""
    one = HashStore()
    with patch.object(rendezvous, "_store", lambda _environment, _until_s: one):
        yield one


def met(environments: list[Environment], limit_s: float) -> list[Store | RanksError]:
    """What each of the ranks comes to."""
    found: dict[int, Store | RanksError] = {}

    def rank(number: int) -> None:
        try:
            found[number] = meet(environments[number], limit_s)
        except RanksError as error:
            found[number] = error

    threads = [Thread(target=rank, args=(number,)) for number in range(len(environments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(environments))]


def test_all_ranks_meet(store: Store):
    assert met([Environment(rank=rank, world_size=3) for rank in range(3)], 10) == [store] * 3


def test_a_process_alone_meets_nobody():
    assert isinstance(meet(Environment(master_addr="nowhere.invalid"), 0.1), HashStore)


def test_missing_ranks_are_named_with_their_hosts_on_all_ranks(store: Store):
    hosts = ("node1", "node1", "node2", "node2")
    there = [Environment(rank=rank, world_size=4, hosts_of_ranks=hosts) for rank in (0, 2)]
    for error in met(there, 0.2):
        assert isinstance(error, RanksError)
        assert error.exit_code == 69
        assert "2 of 4 ranks being there; missing: rank 1 (node1), rank 3 (node2)" in str(error)


def test_hosts_that_the_launcher_does_not_tell_are_those_of_neighbours(store: Store):
    there = [Environment(rank=rank, world_size=6, local_world_size=2) for rank in (0, 2)]
    (told, _) = map(str, met(there, 0.2))
    here = socket.gethostname()
    assert f"missing: rank 1 ({here}), rank 3 ({here}), rank 4 (none of node 2 is there), rank 5" in told


def test_ranks_that_count_differently_are_refused(store: Store):
    told = str(met([Environment(rank=0, world_size=2), Environment(rank=1, world_size=4)], 10)[0])
    assert "rank 0 counts 2 ranks, rank 1 (" in told
    assert "counts 4" in told


def test_two_processes_of_one_rank_are_refused(store: Store):
    store.add("start 0/claims of rank 1", 1)
    store.set("start 0/place 1", Place.here(1, 3).text)
    for error in met([Environment(rank=rank, world_size=3) for rank in (0, 1)], 10):
        assert "are one" in str(error)


def test_a_rank_0_that_is_not_there_is_named():
    with pytest.raises(RanksError, match=r"MASTER_ADDR = '127\.0\.0\.1': is where rank 0 should be"):
        meet(Environment(rank=1, world_size=2, master_port=free_port()), 0.1)


def test_a_port_that_something_else_listens_at_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        environments = [Environment(rank=rank, world_size=2, master_port=silent.getsockname()[1]) for rank in range(2)]
        found = met(environments, 20)
    assert not any(isinstance(each, RanksError) for each in found)
    found[0].set("key", "value")
    assert found[1].get("key") == b"value"


def test_a_job_without_a_number_is_told_that_its_port_is_taken():
    began_s = monotonic()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(RanksError, match=r"MASTER_PORT = .*address already in use.*choose another one"):
            meet(Environment(rank=0, world_size=2, master_port=other.getsockname()[1]), 20)
    assert monotonic() - began_s < 10


def test_all_ports_of_a_job_are_below_the_ephemeral_ones(monkeypatch: pytest.MonkeyPatch):
    assert list(ports(Environment(master_port=29500))) == [29500]
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    tried = list(ports(Environment(master_port=29500)))
    assert tried[0] == 29500
    assert len(set(tried)) == 8
    assert all(10000 <= port < 32768 for port in tried)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
