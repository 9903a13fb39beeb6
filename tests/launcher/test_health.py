"""Nodes that stand out among those of an allocation."""

from megatron_mep.launcher.health import Health, faults_of, neighbours, report

EVEN = {("a", "b"): 10.0, ("b", "c"): 10.0, ("c", "d"): 10.0, ("d", "a"): 10.0}


def ranks(**changes: dict[str, float]) -> list[Health]:
    """Two ranks on each of the nodes a to d, alike but for changes of a node."""
    alike = {"free_gb": 100.0, "shm_gb": 8.0, "clock_s": 5.0, "tflops": 20.0}
    return [
        Health(rank=2 * index + place, host=host, device="CPU", **(alike | changes.get(host, {})))
        for index, host in enumerate("abcd")
        for place in (0, 1)
    ]


def test_nodes_that_are_alike_have_no_faults():
    assert list(faults_of(ranks(), EVEN)) == []


def test_a_node_that_computes_slowly_is_named():
    (fault,) = faults_of(ranks(c={"tflops": 9.0}), EVEN)
    assert fault == "SLOW: c computes at rank 4 9, rank 5 9 TFLOP/s, the median is 20"


def test_a_node_that_exchanges_slowly_is_named_and_its_neighbours_are_not():
    (fault,) = faults_of(ranks(), EVEN | {("b", "c"): 1.0, ("c", "d"): 2.0})
    assert fault == "SLOW: c exchanges at 2 GB/s at most, the median is 6"


def test_clocks_and_memory_are_looked_at():
    faults = list(faults_of(ranks(b={"clock_s": 2.0}, d={"shm_gb": 0.06}), EVEN))
    assert [fault.partition(":")[0] for fault in faults] == ["CLOCK", "MEMORY"]
    assert faults[0].startswith("CLOCK: b is -3.0 s")


def test_each_node_has_two_neighbours():
    assert neighbours(["a", "b", "c"]) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert neighbours(["a", "b"]) == [("a", "b")]
    assert neighbours(["a"]) == []


def test_one_node_alone_is_reported():
    alone = ranks()[:2]
    assert list(faults_of(alone, {})) == []
    lines = list(report(alone, {}, {1024: (0.001, 0.5)}))
    assert lines[0].startswith("a: 2 ranks on CPU, 20, 20 TFLOP/s")
    assert lines[1] == "all-reduce of 1,024 bytes: 1 ms, bus bandwidth 0.5 GB/s"
