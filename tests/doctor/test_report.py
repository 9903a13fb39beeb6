import json
from pathlib import Path

import pytest
from torch import distributed

from megatron_mep.doctor import attention, report
from megatron_mep.doctor.finding import Finding, ok, red, warn
from megatron_mep.encodings import BUILT_IN
from tests.support.distributed import run

FOUND = (ok("Python", "3.11"), warn("disk", "1 GiB", "remove something"))


@pytest.mark.parametrize(("found", "code"), [(FOUND, 0), ((*FOUND, red("torch", "is not installed", "install it")), 1)])
def test_what_is_red_makes_the_exit_code(
    found: tuple[Finding, ...], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(report, "findings", lambda _: iter(found))
    assert report.doctor() == code
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "ok    Python                  3.11"
    assert told[1] == "warn  disk                    1 GiB; remove something"
    assert report.doctor(as_json=True) == code
    assert [entry["level"] for entry in json.loads(capsys.readouterr().out)] == [finding.level for finding in found]


def test_no_model_is_built_where_a_package_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(report, "software", lambda: iter([red("torch", "is not installed", "install it")]))
    assert not any("attention" in finding.topic for finding in report.findings(tmp_path))


@pytest.mark.slow
def test_every_encoding_is_computed_by_some_backend():
    run(_computed, 1)


def _computed():
    # the doctor makes a group of its own
    distributed.destroy_process_group()
    found = list(attention.attention())
    assert not [finding for finding in found if finding.level == "red"]
    told = " ".join(finding.told for finding in found)
    assert all(str(kind.model_fields["name"].default) in told for kind in BUILT_IN)


def test_a_backend_that_fails_is_told():
    run(_failing, 1)


def _failing():
    distributed.destroy_process_group()

    def fails(*_arguments: object) -> None:
        raise RuntimeError("no kernel image\nand more")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "BUILT_IN", [kind for kind in BUILT_IN if kind.__name__ == "Rope"])
        patch.setattr(attention, "_loss", fails)
        (found,) = (finding for finding in attention.attention() if finding.level == "red")
    assert found.told == "fails for rope: no kernel image"
