from dataclasses import replace
from pathlib import Path

import pytest

from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.config.errors import CheckpointError
from tests.checkpoint.test_resume import REACHED


def test_progress_is_read_as_it_was_written(tmp_path: Path):
    reached = replace(REACHED, step=2**40)
    (tmp_path / "progress.json").write_text(reached.json())
    assert read_progress(tmp_path) == reached


@pytest.mark.parametrize("text", [None, "{", "[]", "3", "{}", '{"step": 1, "steps": 2}'])
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str | None):
    if text is not None:
        (tmp_path / "progress.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"progress.json: cannot be read"):
        read_progress(tmp_path)
