"""Cluster profiles: the shipped ones are valid, and every mistake in one is told."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_mep.config.errors import ConfigError
from megatron_mep.config.loader import validate
from megatron_mep.launcher.profile import Cluster, load_cluster

FOLDER = Path(__file__).parents[2] / "launch" / "clusters"
SHIPPED = sorted(FOLDER.glob("*.yaml"))


def told(**changes: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        validate(Cluster, {"gpus_per_node": 8, "time_limit": "24:00:00", **changes})
    return "\n".join(str(mistake) for mistake in raised.value.mistakes)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_shipped_profile_is_valid_and_says_what_it_is(file: Path):
    assert load_cluster(str(file)).num_ranks > 0
    assert file.read_text(encoding="utf-8").startswith("# ")


def test_a_profile_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(FOLDER.parents[1])
    assert load_cluster("cpu").num_ranks == 2


def test_an_unknown_name_is_told_with_the_nearest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(FOLDER.parents[1])
    with pytest.raises(ConfigError, match=r"--cluster = 'h10': is not a profile .*did you mean 'h100'"):
        load_cluster("h10")


def test_every_mistake_of_a_file_is_told_at_once(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    tree = {"gpus_per_nod": 8, "time_limit": "a day", "launcher": "mpirun", "partition": "gpu queue"}
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        load_cluster(str(file))
    keys = {mistake.key for mistake in raised.value.mistakes}
    assert keys == {"gpus_per_nod", "time_limit", "launcher", "partition"}
    assert "did you mean 'gpus_per_node'?" in str(raised.value)


def test_a_clock_must_stand_in_quotes(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("gpus_per_node: 8\ntime_limit: 24:00:00\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"time_limit = 86400: must stand in quotes.*; write '24:00:00'"):
        load_cluster(str(file))


def test_nodes_without_gpus_say_how_many_ranks_they_have():
    assert (
        told(gpus_per_node=0) == "ranks_per_node: is needed where gpus_per_node is 0; state how many ranks a node has"
    )


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"ranks_per_node": 0}, "ranks_per_node"),
        ({"device": "h10"}, "device"),
        ({"environment": {"NOT A NAME": "1"}}, "environment"),
        ({"container": {"image": "a b"}}, "container.image"),
        ({"setup": ["two\nlines"]}, "setup[0]"),
        ({"max_starts": 0}, "max_starts"),
        ({"go_on_by": "hope"}, "go_on_by"),
    ],
)
def test_a_wrong_value_is_told_with_its_key(changes: dict[str, Any], key: str):
    assert told(**changes).startswith(key)
