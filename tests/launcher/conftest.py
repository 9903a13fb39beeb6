"""SLURM in miniature for the tests of this folder."""

from pathlib import Path

import pytest

from tests.launcher.stubs import Slurm


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)
