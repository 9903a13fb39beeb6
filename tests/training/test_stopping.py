from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import distributed

from megatron_mep.config.errors import ConfigError
from megatron_mep.training import stopping
from megatron_mep.training.signals import Signals
from megatron_mep.training.stopping import REASONS, Stopped, Stopping, end_time
from tests.support.distributed import run


def test_nothing_is_asked_of_a_run_that_goes_on(tmp_path: Path):
    quiet = Stopping(Signals(), tmp_path / "STOP", end_s=2.0**40)
    assert quiet.asked() == [0, 0, 0, 0]
    quiet.agree(quiet.asked())
    assert quiet.reason is None


def test_everything_that_asks_is_seen(tmp_path: Path):
    signals = Signals()
    asked = Stopping(signals, tmp_path / "STOP", end_s=1000.0)
    with patch.object(stopping.time, "time", lambda: 999.9):
        assert asked.asked() == [0, 0, 0, 0]
        signals.heard = "SIGTERM"
        (tmp_path / "STOP").touch()
    with patch.object(stopping.time, "time", lambda: 1000.0):
        assert dict(zip(REASONS, asked.asked(), strict=True)) == {
            "SIGUSR1": 0,
            "SIGTERM": 1,
            "STOP": 1,
            "the clock": 1,
        }


def test_ranks_agree_on_one_reason_and_keep_to_it():
    run(_agree, 2)


def _agree():
    signals = Signals()
    here = Stopping(signals)
    here.agree_now(torch.device("cpu"))
    assert here.reason is None
    signals.heard = "SIGTERM" if distributed.get_rank() == 0 else "SIGUSR1"
    here.agree_now(torch.device("cpu"))
    assert here.reason == "SIGUSR1"
    signals.heard = "SIGTERM"
    here.agree_now(torch.device("cpu"))
    assert here.reason == "SIGUSR1"


@pytest.mark.parametrize(
    ("minutes", "stated", "expected"),
    [(None, None, None), (2.0, None, 220.0), (None, "150", 150.0), (2.0, "150", 150.0), (0.5, "150.5", 130.0)],
)
def test_the_earlier_end_counts(minutes: float | None, stated: str | None, expected: float | None):
    assert end_time(100.0, minutes, stated) == expected


def test_an_end_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="MEP_END_TIME = '12:00'"):
        end_time(100.0, None, "12:00")


def test_a_stop_has_an_exit_code_of_its_own():
    assert Stopped("SIGUSR1").code == 75
