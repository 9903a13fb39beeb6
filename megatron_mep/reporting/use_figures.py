"""What models use of their context: the gradient's share within a distance, and attention by distance in each head."""

from collections.abc import Mapping, Sequence

from megatron_mep.reporting.charts import Axis, Chart, Curve, HeatMap, Point, Style, powers
from megatron_mep.reporting.models import labels_of, model_of
from megatron_mep.reporting.rows import AnalysisRow

Analyses = Mapping[int, AnalysisRow]
"""Of one model, by length."""


def analyses_by_length(rows: Sequence[AnalysisRow]) -> dict[str, Analyses]:
    """From a model's label to its newest analysis at each length."""
    labels = labels_of(rows)
    found: dict[str, dict[int, AnalysisRow]] = {label: {} for label in labels.values()}
    for row in sorted(rows, key=lambda row: row.created):
        found[labels[model_of(row)]][row.length] = row
    return dict(found)


def longest(analyses: Analyses) -> AnalysisRow:
    """That of the greatest length."""
    return analyses[max(analyses)]


def receptive_field_chart(analyses: Mapping[str, AnalysisRow], style: Mapping[str, Style], name: str) -> Chart | None:
    """Share of the gradient within a distance, one curve a model; `None` where none is finite."""
    curves = [
        Curve(label, _points(row), style[label], "plain") for label, row in analyses.items() if row.gradient_share
    ]
    x = Axis("distance + 1", log=True, ticks=powers(max(row.length for row in analyses.values())))
    y = Axis("share of the gradient within it", limits=(-0.03, 1.03))
    marks = dict.fromkeys((float(row.train_length) for row in analyses.values()), "training length")
    return Chart(name, "Receptive field", x, y, curves, marks) if curves else None


def attention_map(label: str, row: AnalysisRow, name: str) -> HeatMap | None:
    """Where the heads of a model look, by distance; `None` where some score is not finite."""
    if row.attention_mass is None:
        return None
    heads = [
        (f"{layer}.{head}", mass)
        for layer, masses in enumerate(row.attention_mass, start=1)
        for head, mass in enumerate(masses, start=1)
    ]
    firsts = (0, *(end + 1 for end in row.distance_ends[:-1]))
    columns = [
        str(end) if first == end else f"{first}-{end}" for first, end in zip(firsts, row.distance_ends, strict=True)
    ]
    return HeatMap(
        name,
        f"{label}, windows of {row.length}",
        "distance (tokens)",
        "layer.head",
        columns,
        [head for head, _ in heads],
        [list(mass) for _, mass in heads],
        [[f"{share:.2%} of attention" for share in mass] for _, mass in heads],
        "share",
        max(max(mass) for _, mass in heads),
        written=False,
    )


def _points(row: AnalysisRow) -> list[Point]:
    assert row.gradient_share is not None, "asked of rows that tell it"
    told = f"windows of {row.length}\n{row.receptive_field_share:.0%} within {row.receptive_field}"
    return [Point(end + 1, share, told) for end, share in zip(row.distance_ends, row.gradient_share, strict=True)]
