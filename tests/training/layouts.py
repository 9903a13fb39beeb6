"""The layouts that tests train at, and which pairs of their parts no run may have."""

from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import Any

from megatron_mep.config.errors import ConfigError
from megatron_mep.run import overridden, run_of
from tests.support.runs import run_tree
from tests.training.course import MODELS

COMPARED = ("mep", "learned mep", "rope", "fire")
EXCHANGES = ("all_gather", "ulysses", "ring")


@dataclass(frozen=True)
class Layout:
    """How a model is trained, by overrides of a run file."""

    parallel: dict[str, Any] = field(default_factory=dict)
    data: int = 1
    zero_stage: int = 1
    recompute: str = "none"
    models: tuple[str, ...] = ("learned mep",)
    is_quick: bool = False
    """Whether it is a part of every run of the tests."""

    @property
    def world_size(self) -> int:
        return self.data * prod(self.parallel.get(axis, 1) for axis in ("tensor", "context", "pipeline"))

    @property
    def num_micro_batches(self) -> int:
        """Of a step on each data rank: two, which decide what places are drawn, unless interleaved stages need more."""
        return self.parallel["pipeline"] if self.parallel.get("virtual_pipeline", 1) > 1 else 2

    @property
    def parts(self) -> frozenset[str]:
        """Those of `PARTS` that it has."""
        told = self.parallel
        exchange = told.get("context_exchange", "all_gather")
        has = {
            "tensor": told.get("tensor", 1) > 1,
            "sequence": told.get("sequence", False),
            "pipeline": told.get("pipeline", 1) > 1 and told.get("virtual_pipeline", 1) == 1,
            "pipeline, interleaved": told.get("virtual_pipeline", 1) > 1,
            "data": self.data > 1,
            f"ZeRO {self.zero_stage}": True,
            f"recompute {self.recompute}": self.recompute != "none",
            f"context, {exchange}": told.get("context", 1) > 1,
        }
        return frozenset(name for name, holds in has.items() if holds)

    def __str__(self) -> str:
        axes = [f"{key}={value}" for key, value in self.parallel.items()]
        return " ".join([*axes, f"data={self.data}", f"zero={self.zero_stage}", f"recompute={self.recompute}"])


PARTS: dict[str, dict[str, Any]] = {
    "tensor": {"parallel.tensor": 2},
    "sequence": {"parallel.tensor": 2, "parallel.sequence": True},
    **{f"context, {way}": {"parallel.context": 2, "parallel.context_exchange": way} for way in EXCHANGES},
    "pipeline": {"parallel.pipeline": 2},
    "pipeline, interleaved": {"parallel.pipeline": 2, "parallel.virtual_pipeline": 2},
    "data": {},
    **{f"ZeRO {stage}": {"training.zero_stage": stage} for stage in range(4)},
    "recompute selective": {"training.recompute": "selective"},
    "recompute full": {"training.recompute": "full"},
}
"""Parts of a layout, and what a run file says of them; the world's size says how many data ranks there are."""
TENSOR, CONTEXT, STAGES = {"tensor": 2, "sequence": True}, {"context": 2}, {"pipeline": 2}
INTERLEAVED = STAGES | {"virtual_pipeline": 2}


def exchanged(exchange: str) -> dict[str, Any]:
    return CONTEXT | {"context_exchange": exchange}


LAYOUTS = (
    Layout(TENSOR, models=COMPARED, is_quick=True),
    Layout(STAGES, models=COMPARED, is_quick=True),
    Layout(STAGES, models=("randomized", "tied", "shared", "carried", "bare stage"), is_quick=True),
    Layout(INTERLEAVED, models=("learned mep", "randomized", "tied", "shared", "carried", "bare stage"), is_quick=True),
    Layout(CONTEXT, models=("randomized", "tied", "shared", "carried"), is_quick=True),
    *(Layout(exchanged(exchange), models=("learned mep",), is_quick=True) for exchange in EXCHANGES),
    *(Layout(STAGES, recompute=what, models=("learned mep", "randomized"), is_quick=True)
      for what in ("selective", "full")),
    Layout({"tensor": 2}, models=COMPARED),
    Layout({"tensor": 4, "sequence": True}, models=COMPARED),
    Layout({"pipeline": 4}, models=(*COMPARED, "randomized", "tied", "carried", "bare stage")),
    Layout(TENSOR | STAGES, models=COMPARED),
    Layout(INTERLEAVED, models=COMPARED),
    Layout({"pipeline": 4, "virtual_pipeline": 2}, models=("deep", "deep and shared")),
    Layout(TENSOR | INTERLEAVED, models=COMPARED),
    Layout(INTERLEAVED, data=2, models=("learned mep", "tied", "shared")),
    *(Layout(TENSOR | exchanged(exchange) | INTERLEAVED) for exchange in EXCHANGES),
    *(Layout(INTERLEAVED, recompute=what, models=("learned mep", "randomized")) for what in ("selective", "full")),
    Layout(CONTEXT | STAGES, models=("randomized", "tied", "shared", "carried")),
    Layout(STAGES, data=2, models=("learned mep", "tied", "shared")),
    *(Layout({"context": ranks, "context_exchange": exchange}, models=COMPARED)
      for exchange in EXCHANGES for ranks in (2, 4)),
    *(Layout(TENSOR | exchanged(exchange), models=COMPARED) for exchange in EXCHANGES),
    *(Layout(TENSOR | exchanged(exchange) | STAGES, models=COMPARED) for exchange in EXCHANGES),
    *(Layout(data=2, zero_stage=stage, models=COMPARED) for stage in range(4)),
    *(Layout(TENSOR, data=2, zero_stage=stage, models=COMPARED) for stage in range(4)),
    *(Layout(exchanged(exchange), data=2, zero_stage=stage) for exchange in EXCHANGES for stage in range(4)),
    *(Layout(TENSOR | exchanged(exchange) | STAGES, recompute=what)
      for exchange in EXCHANGES for what in ("selective", "full")),
    *(Layout(TENSOR, data=2, zero_stage=stage, recompute=what)
      for stage in range(4) for what in ("selective", "full")),
)  # fmt: skip


def is_refused(*parts: str) -> bool:
    """Whether no run may have these parts together."""
    tree = run_tree(model={"num_layers": 4, **MODELS["learned mep"]}, training={"precision": "fp32", "seq_length": 16})
    changes = {key: value for part in parts for key, value in PARTS[part].items()}
    try:
        overridden(run_of(tree), [f"{key}={value}" for key, value in changes.items()])
    except ConfigError:
        return True
    return False


def are_of_one_kind(one: str, other: str) -> bool:
    """Whether a layout has one of them at most."""
    kind, other_kind = (part.replace(",", " ").split()[0] for part in (one, other))
    return kind == other_kind


def table() -> str:
    """Every pair in Markdown: trained by a test, refused, or two of one kind."""
    names = list(PARTS)
    cells = {pair: _cell(*pair) for pair in combinations(names, 2)}
    rows = [
        [name, *(cells.get((other, name), "") for other in names[:-1])] for name in names[1:]
    ]  # the half below the diagonal
    lines = [["", *names[:-1]], ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(one: str, other: str) -> str:
    if are_of_one_kind(one, other):
        return "one of them"
    if is_refused(one, other):
        return "refused"
    trained = any({one, other} <= layout.parts for layout in LAYOUTS)
    assert trained, f"{one} and {other} may be had together, and no test trains with them"
    return "equal"
