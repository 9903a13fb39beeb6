"""The model card of an exported model: what it is, how it is used, and how far it has been measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from megatron_mep.attention.chunked import NUM_ROWS
from megatron_mep.config.base import Config
from megatron_mep.evaluation.rows import ResultRow, read_rows
from megatron_mep.run import RunConfig


def card_of(run: RunConfig, facts: dict[str, Any], rows: Sequence[ResultRow]) -> str:
    """`README.md`; `facts` are what else its template names."""
    environment = Environment(
        loader=PackageLoader("megatron_mep", "export"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template("card.md.j2").render(
        name=run.name,
        train_length=run.training.seq_length,
        encoding=run.model.encoding,
        tricks=run.extrapolation,
        options=_yaml(run.model.encoding, *run.extrapolation),
        rows=rows,
        num_rows=NUM_ROWS,
        **facts,
    )


def rows_of(run: RunConfig, checkpoint: Path) -> list[ResultRow]:
    """The newest of what was measured of a checkpoint under the run's tricks, for each protocol, length and context."""
    file = checkpoint.parent.parent / "evaluation" / f"{checkpoint.name}.jsonl"
    tricks = tuple(trick.model_dump(mode="json") for trick in run.extrapolation)
    measured = [row for row in read_rows(file) if row.extrapolation == tricks] if file.is_file() else []
    newest = {(row.protocol, row.length, row.context, row.stride): row for row in measured}
    return sorted(newest.values(), key=lambda row: (row.protocol, str(row.context), row.length))


def _yaml(*sections: Config) -> str:
    trees = [section.model_dump(mode="json") for section in sections]
    return "".join(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True) for tree in trees)
