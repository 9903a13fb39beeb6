"""By what a checkpoint was written: what the file says, and what is read from those of earlier versions."""

import json

from megatron_mep.checkpoint.written_by import Writer, written_by
from megatron_mep.commit import Commit

COMMIT = Commit("12ab", changed=True)


def test_the_file_tells_versions_and_the_commit() -> None:
    facts = json.loads(written_by(COMMIT))
    assert facts["commit"] == {"sha": "12ab", "changed": True}
    writer = Writer.of(facts)
    assert writer.commit == COMMIT
    assert {"python", "torch", "megatron-mep"} <= writer.versions.keys()
    assert str(writer).endswith(", commit 12ab with changes")


def test_outside_of_a_repository_there_is_no_commit() -> None:
    facts = json.loads(written_by(None))
    assert facts["commit"] is None
    assert Writer.of(facts).commit is None


def test_files_of_earlier_versions_are_read() -> None:
    assert str(Writer.of({"versions": {"torch": "2.13.0"}})) == "torch 2.13.0, commit unknown"
    assert str(Writer.of({})) == "unknown versions, commit unknown"
