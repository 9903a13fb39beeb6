"""Times as SLURM writes them."""

import pytest

from megatron_mep.launcher.clock import seconds_of, slurm_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:15", 5415),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("1-02:03:04", 93784),
    ],
)
def test_every_form_is_read(text: str, seconds: int):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "a day", "1:2:3:4", "-5", "1-", "24h"])
def test_other_text_is_refused_with_an_example(text: str):
    with pytest.raises(ValueError, match="for example 90"):
        seconds_of(text)


@pytest.mark.parametrize("seconds", [60, 3600, 86400, 93784])
def test_what_is_written_is_read_again(seconds: int):
    assert seconds_of(slurm_time(seconds)) == seconds
