import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_mep.doctor import machine

GIB = 2**30


def test_shared_memory_must_be_there_and_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert machine.shared_memory(tmp_path / "shm").level == "warn"
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=64 * 2**20))
    little = machine.shared_memory(tmp_path)
    assert (little.level, "--shm-size" in little.remedy) == ("warn", True)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * GIB))
    assert machine.shared_memory(tmp_path).level == "ok"


@pytest.mark.parametrize(
    ("soft", "level"), [(256, "red"), (1024, "warn"), (4096, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_open_files(soft: int, level: str):
    assert machine.open_files(soft, 2**20).level == level


def test_locked_memory_matters_where_there_is_infiniband():
    assert machine.locked_memory(65536, fast_network=False).level == "ok"
    assert machine.locked_memory(65536, fast_network=True).level == "red"
    assert machine.locked_memory(resource.RLIM_INFINITY, fast_network=True).level == "ok"


def test_a_compiler_is_the_named_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    missing = machine.compiler()
    assert (missing.level, "no-such-compiler" in missing.told) == ("warn", True)
    monkeypatch.setenv("CXX", "sh")
    assert machine.compiler().level == "ok"


def test_caches_are_written_to(tmp_path: Path):
    assert machine.cache("HF_HOME", tmp_path / "deep" / "below", "datasets").level == "ok"
    assert not (tmp_path / "deep").exists()
    file = tmp_path / "file"
    file.touch()
    refused = machine.cache("HF_HOME", file, "datasets")
    assert (refused.level, "HF_HOME" in refused.remedy) == ("red", True)


def test_a_disk_with_little_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for free, level in ((GIB, "warn"), (100 * GIB, "ok")):
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert machine.disk(tmp_path / "runs").level == level
