"""Tables: the same numbers as text, Markdown and CSV."""

import csv
import io
import math

import pytest

from megatron_mep.reporting.comparison import Comparison, comparisons
from megatron_mep.reporting.tables import as_csv, as_markdown, as_text, shown
from tests.reporting.example import as_read, curve, result


def compared() -> list[Comparison]:
    rows = curve("mep", {128: 31.0, 256: 27.9}) + curve("rope", {128: 30.0, 256: math.inf, 512: math.nan}, cut=29.0)
    return comparisons(as_read(*rows, result("other", 128, 12.5, scored_hash="6" * 64)))


def test_text_for_the_terminal() -> None:
    assert (
        as_text(compared())
        == """\
Blocks: 4,096 tokens, hash 555555555555

perplexity at length    128    256         512
--------------------  -----  -----  ----------
mep                   31.00  27.90           -
  context cut to 128  31.00  30.50           -
  ratio to 128        1.000  0.900           -
rope                  30.00    inf  not finite
  context cut to 128  30.00  29.00       29.00
  ratio to 128        1.000    inf           -

Blocks: 4,096 tokens, hash 666666666666
Not comparable with the first blocks table: other tokens were scored (4,096 with hash 666666666666, there 4,096 with \
hash 555555555555).

perplexity at length    128
--------------------  -----
other                 12.50
"""
    )


def test_markdown_sets_the_lowest_in_bold_and_escapes_names() -> None:
    rows = curve("a|b_*c*", {128: 31.0, 256: 27.9}) + curve("rope", {128: 30.0, 256: math.inf})
    lines = as_markdown(comparisons(as_read(*rows))).splitlines()
    assert "| a\\|b\\_\\*c\\* | 31.00 | **27.90** |" in lines
    assert "| rope | **30.00** | inf |" in lines
    assert "| *ratio to 128* | 1.000 | 0.900 |" in lines


def test_csv_has_every_number_once_in_full_precision() -> None:
    records = list(csv.DictReader(io.StringIO(as_csv(compared()))))
    keys = [(record["run"], record["length"], record["context"]) for record in records]
    assert sorted(keys) == sorted(
        [
            *(("mep", "128", "full"), ("mep", "256", "full"), ("mep", "256", "cut")),
            *(("rope", "128", "full"), ("rope", "256", "full"), ("rope", "256", "cut")),
            *(("rope", "512", "full"), ("rope", "512", "cut"), ("other", "128", "full")),
        ]
    )
    by_key = dict(zip(keys, records, strict=True))
    assert float(by_key["mep", "256", "full"]["perplexity"]) == math.exp(math.log(27.9))
    assert float(by_key["mep", "256", "full"]["ratio_to_train_length"]) == pytest.approx(0.9, rel=1e-12)
    assert by_key["rope", "256", "full"]["perplexity"] == "inf"
    assert by_key["rope", "512", "full"]["perplexity"] == "nan"
    assert by_key["other", "128", "full"]["scored_hash"] != by_key["mep", "128", "full"]["scored_hash"]


@pytest.mark.parametrize(
    ("perplexity", "text"),
    [(3.14159, "3.14"), (314.159, "314.2"), (31415.9, "31416"), (3141592.6, "3.14e+06"), (math.inf, "inf")],
)
def test_numbers_are_shown_to_a_readable_precision(perplexity: float, text: str) -> None:
    assert shown(perplexity) == text
