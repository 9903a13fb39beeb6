"""Result rows -> comparisons: rows that scored the same tokens by the same protocol stand together, others never."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from megatron_mep.reporting.models import labels_of, model_of
from megatron_mep.reporting.rows import Row
from megatron_mep.reporting.tricks import with_tricks

NAMES = {"blocks": "Blocks", "per-position": "Blocks, by position", "sliding": "Sliding windows"}


@dataclass(frozen=True)
class Line:
    """One model in a comparison: its perplexity at each length."""

    label: str
    """The run's name, with as much more as tells it from the other lines."""
    model: Row
    """Any of its rows, for what they share: run, encoding, step, training length, ..."""
    full: dict[int, Row]
    """From length to the row with all context."""
    cut: dict[int, Row] = field(default_factory=dict)
    """From length to the control: context cut to the training length. Below it the full row is its own control."""

    @property
    def measured(self) -> list[Row]:
        """Each row once."""
        return [*self.full.values(), *(row for row in self.cut.values() if row.context == "cut")]

    def ratio(self, length: int) -> float:
        """Perplexity over that at the training length; NaN where either is missing, or both are infinite."""
        here, trained = self.full.get(length), self.full.get(self.model.train_length)
        return math.nan if here is None or trained is None else here.value / trained.value


@dataclass(frozen=True)
class Comparison:
    """Lines whose numbers may be held against each other."""

    protocol: str
    last_k: int | None
    scored_tokens: int
    scored_hash: str
    tokenizer_hash: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    """What was left out, and why this comparison stands apart from others."""

    @property
    def lengths(self) -> list[int]:
        """Every length that a line has, ascending."""
        return sorted({length for line in self.lines for length in line.full | line.cut})

    @property
    def name(self) -> str:
        """The protocol in words."""
        if all(line.model.purpose == "validation" for line in self.lines):
            return "Validation"
        return f"Last {self.last_k} tokens" if self.last_k is not None else NAMES.get(self.protocol, self.protocol)

    @property
    def title(self) -> str:
        """What is compared, in one line."""
        return f"{self.name}: {self.scored_tokens:,} tokens, hash {self.scored_hash[:12]}"


def comparisons(rows: Iterable[Row]) -> list[Comparison]:
    """The rows by what they scored, in the order of first appearance; validations only with each run's last step."""
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        # elsewhere a stride follows from the length
        stride = row.stride if row.protocol == "sliding" else None
        groups[row.protocol, row.last_k, stride, row.scored_tokens, row.scored_hash, row.tokenizer_hash].append(row)
    apart = _reasons_apart([group[0] for group in groups.values()])
    return [_comparison(group, reason) for group, reason in zip(groups.values(), apart, strict=True)]


def _comparison(rows: list[Row], apart: str | None) -> Comparison:
    latest, left_out = _latest_validations(rows)
    newest, superseded = _newest(latest)
    first = rows[0]
    notes = [note for note in (apart, left_out, *superseded) if note]
    return Comparison(
        first.protocol,
        first.last_k,
        first.scored_tokens,
        first.scored_hash,
        first.tokenizer_hash,
        _lines(newest),
        tuple(notes),
    )


def _reasons_apart(firsts: Sequence[Row]) -> list[str | None]:
    """For each comparison, how it differs from the first of its protocol."""
    earlier: dict[str, Row] = {}
    reasons: list[str | None] = []
    for row in firsts:
        first = earlier.setdefault(row.protocol, row)
        if first is row:
            reasons.append(None)
        elif first.tokenizer_hash != row.tokenizer_hash:
            reasons.append(
                f"Not comparable with the first {row.protocol} table: another tokenizer "
                f"({row.tokenizer_hash[:12]}, there {first.tokenizer_hash[:12]})."
            )
        elif first.scored_hash == row.scored_hash and first.stride != row.stride:
            reasons.append(
                f"Not comparable with the first {row.protocol} table: stride {row.stride}, there {first.stride}."
            )
        else:
            reasons.append(
                f"Not comparable with the first {row.protocol} table: other tokens were scored "
                f"({row.scored_tokens:,} with hash {row.scored_hash[:12]}, "
                f"there {first.scored_tokens:,} with hash {first.scored_hash[:12]})."
            )
    return reasons


def _latest_validations(rows: list[Row]) -> tuple[list[Row], str | None]:
    """Without the validations that a later one of the same run follows."""
    last_step: dict[tuple[object, ...], int] = {}
    for row in rows:
        if row.purpose == "validation":
            training = model_of(row)[:-1]
            last_step[training] = max(row.step, last_step.get(training, 0))
    kept = [row for row in rows if row.purpose == "evaluation" or row.step == last_step[model_of(row)[:-1]]]
    dropped = len(rows) - len(kept)
    return kept, f"{dropped} validations during training before each run's last are not shown." if dropped else None


def _newest(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """One row for each model, length and context, the newest; and what it replaces."""
    kept: dict[tuple[object, ...], Row] = {}
    replaced: Counter[tuple[object, ...]] = Counter()
    for row in sorted(rows, key=lambda row: row.created):
        key = (*model_of(row), row.length, row.context)
        replaced[key] += key in kept
        kept[key] = row
    notes = [
        f"{with_tricks(row, [])}, step {row.step}, length {row.length}, {row.context} context: "
        f"measured {replaced[key] + 1} times, the newest of {row.created:%Y-%m-%d %H:%M:%S %Z} is shown."
        for key, row in kept.items()
        if replaced[key]
    ]
    newest = set(map(id, kept.values()))
    return [row for row in rows if id(row) in newest], notes


def _lines(rows: list[Row]) -> tuple[Line, ...]:
    by_model: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        by_model[model_of(row)].append(row)
    labels = labels_of(rows)
    return tuple(_line(labels[model], own) for model, own in by_model.items())


def _line(label: str, rows: list[Row]) -> Line:
    full = {row.length: row for row in rows if row.context == "full"}
    cut = {row.length: row for row in rows if row.context == "cut"}
    model = rows[0]
    trained = full.get(model.train_length)
    if model.protocol in ("sliding", "last-k") and trained is not None:
        # the windows of the training length score the same tokens with at most that much context
        cut = {length: trained for length in full if length > model.train_length}
    within = {length: row for length, row in full.items() if length <= model.train_length}
    return Line(label, model, full, within | cut if cut else {})
