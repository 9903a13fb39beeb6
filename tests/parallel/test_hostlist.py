import pytest

from megatron_mep.config.errors import ConfigError
from megatron_mep.parallel.hostlist import hosts


@pytest.mark.parametrize(
    ("hostlist", "expected"),
    [
        ("login", ["login"]),
        ("a,b-1.cluster", ["a", "b-1.cluster"]),
        ("node[01-03,07],gpu5", ["node01", "node02", "node03", "node07", "gpu5"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[5]-ib", ["n5-ib"]),
        ("rack[1-2]n[3-4]", ["rack1n3", "rack1n4", "rack2n3", "rack2n4"]),
    ],
)
def test_a_host_list_is_written_out_as_scontrol_does(hostlist: str, expected: list[str]):
    assert hosts(hostlist) == expected


@pytest.mark.parametrize("hostlist", ["", "n[", "n[1", "n]1[", "n[1-]", "n[]", "n[1,]", "a,,b", "a,", "n[x]", "n[[1]]"])
def test_what_is_no_host_list_is_refused(hostlist: str):
    with pytest.raises(ConfigError, match="SLURM_JOB_NODELIST"):
        hosts(hostlist)
