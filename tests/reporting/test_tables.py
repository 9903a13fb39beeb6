"""Tables: the same numbers as text, Markdown, LaTeX and CSV."""

import csv
import io
import math

import pytest

from megatron_mep.reporting.comparison import Comparison, comparisons
from megatron_mep.reporting.numbers import analyses_csv, perplexities_csv, probes_csv
from megatron_mep.reporting.rows import AnalysisRow, ProbeRow
from megatron_mep.reporting.tables import perplexity_grid, score_grid, shown
from megatron_mep.reporting.writing import as_latex, as_markdown, as_text
from tests.reporting.example import analysis, as_read, curve, probe, result


def compared() -> list[Comparison]:
    rows = curve("mep", {128: 31.0, 256: 27.9}) + curve("rope", {128: 30.0, 256: math.inf, 512: math.nan}, cut=29.0)
    return comparisons(as_read(*rows, result("other", 128, 12.5, scored_hash="6" * 64)))


def test_text_for_the_terminal() -> None:
    assert (
        as_text(map(perplexity_grid, compared()))
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
    lines = as_markdown(map(perplexity_grid, comparisons(as_read(*rows)))).splitlines()
    assert "| a\\|b\\_\\*c\\* | 31.00 | **27.90** |" in lines
    assert "| rope | **30.00** | inf |" in lines
    assert "| *ratio to 128* | 1.000 | 0.900 |" in lines


def test_latex_sets_the_lowest_in_bold_and_escapes_names() -> None:
    rows = curve("a_b&{c}\\", {128: 31.0, 256: 27.9}) + curve("rope", {128: 30.0, 256: math.inf})
    written = as_latex(map(perplexity_grid, comparisons(as_read(*rows))))
    assert (
        written
        == r"""\begin{table}
  \centering
  \caption{Blocks: 4,096 tokens, hash 555555555555.}
  \begin{tabular}{lrr}
    \toprule
    perplexity at length & 128 & 256 \\
    \midrule
    a\_b\&\{c\}\textbackslash{} & 31.00 & \textbf{27.90} \\
    \quad\textit{context cut to 128} & 31.00 & 30.50 \\
    \quad\textit{ratio to 128} & 1.000 & 0.900 \\
    rope & \textbf{30.00} & inf \\
    \quad\textit{context cut to 128} & 30.00 & 30.50 \\
    \quad\textit{ratio to 128} & 1.000 & inf \\
    \bottomrule
  \end{tabular}
\end{table}
"""
    )


def test_the_highest_score_is_the_best_unless_nothing_is_right() -> None:
    grid = score_grid("copy", [10, 20, 40], {"mep": {10: 90.0, 20: 0.01, 40: math.nan}, "rope": {10: 80.0, 20: 0.0}})
    assert [row.cells for row in grid.rows] == [("90.0", "0.0", "not finite"), ("80.0", "0.0", "-")]
    assert [row.best for row in grid.rows] == [(True, False, False), (False, False, False)]


def test_probes_and_analyses_have_csv_of_their_own() -> None:
    asked = ProbeRow.model_validate_json(probe("mep", 128, 75.0).model_dump_json())
    (record,) = csv.DictReader(io.StringIO(probes_csv([asked])))
    assert (record["task"], record["length"], record["depth"], record["found"]) == ("passkey", "128", "0.5", "75.0")
    assert record["task_options"] == '{"max_new_tokens": 12}'
    (record,) = csv.DictReader(io.StringIO(analyses_csv([AnalysisRow.model_validate(analysis("mep", 128))])))
    assert (record["run"], record["receptive_field"]) == ("mep", "126")


def test_csv_has_every_number_once_in_full_precision() -> None:
    records = list(csv.DictReader(io.StringIO(perplexities_csv(compared()))))
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
