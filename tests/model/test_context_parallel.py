"""A model whose sequences are shared by context ranks computes what it computes on one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.gradients import sum_over_tensor_ranks
from tests.support.distributed import joined, run
from tests.support.results import Results, assert_alike, results_of, undivided_results
from tests.support.tiny import LEARNED, VOCABULARY, model_config

SEED = 3
MODELS: dict[str, dict[str, Any]] = {
    "mep": {"encoding": {"name": "mep"}},
    "learned mep": {"encoding": LEARNED},
    "learned mep, 2 groups": {"encoding": LEARNED, "num_query_groups": 2},
    "learned mep, 1 group, normed": {"encoding": LEARNED, "num_query_groups": 1, "qk_norm": True},
    "rope": {"encoding": {"name": "rope"}},
    "nope, tied": {"encoding": {"name": "nope"}, "tied_embeddings": True},
    "clex": {"encoding": {"name": "clex", "train_length": 5, "max_factor": 4}},
    "lrpe, 2 groups": {
        "encoding": {"name": "lrpe", "vector": "learned", "vector_of_each_head": True},
        "num_query_groups": 2,
    },
    "tape": {"encoding": {"name": "tape", "init_std": 0.5}},
    "randomized": {"encoding": {"name": "randomized_rotation", "train_length": 16, "range": 64}},
    "added to embeddings": {"encoding": {"name": "learned_absolute", "num_positions": 16}},
    "bipe": {"encoding": {"name": "bipe_rope", "ends": list(range(0, 300, 7))}},
    "fire": {"encoding": {"name": "fire", "threshold": 8.5}},
    "shared fire": {"encoding": {"name": "fire", "threshold": 8.5, "shared_by_layers": True}},
    "fox": {"encoding": {"name": "fox"}},
    "cable": {"encoding": {"name": "cable"}},
    "fox with gains": {"encoding": {"name": "tests.encodings.examples:Cable"}},
    "cope": {"encoding": {"name": "cope", "num_positions": 9}},
    "dape": {"encoding": {"name": "dape"}},
    "hirope": {"encoding": {"name": "hirope"}},
    "xpos": {"encoding": {"name": "xpos"}},
    "rpe_3d": {"encoding": {"name": "rpe_3d", "chunk_size": 5, "local_window": 1}},
    "bipe_alibi": {"encoding": {"name": "bipe_alibi", "ends": list(range(0, 300, 7))}},
}
OF_PAIRS = {"fire", "shared fire", "fox", "cable", "fox with gains", "cope", "dape", "hirope", "xpos", "rpe_3d",
            "bipe_alibi"}  # fmt: skip
"""What a ring refuses."""
WHOLE_HEADS = {"tape", "dape"}
"""What no heads may be taken from."""


def built(name: str, parallel: ParallelConfig | None = None, **options: Any) -> nn.Module:
    return build_model(model_config(**MODELS[name]), parallel or ParallelConfig(), VOCABULARY, SEED, **options)


def served(name: str, layout: ParallelConfig) -> bool:
    if layout.context_exchange == "ring" and name in OF_PAIRS:
        return False
    if layout.context_exchange == "ulysses" and name == "dape":
        return False
    return layout.tensor == 1 or name not in WHOLE_HEADS


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every model computes undivided."""
    file = tmp_path_factory.mktemp("expected") / "expected.pt"
    run(_undivided, 1, file)
    return file


def _undivided(file: Path) -> None:
    here = joined()
    torch.save({name: undivided_results(built(name), here.tensor_group) for name in MODELS}, file)


@pytest.mark.parametrize("exchange", ["all_gather", "ulysses", "ring"])
@pytest.mark.parametrize(("tensor", "context", "sequence"), [(1, 2, False), (1, 4, False), (2, 2, True)])
def test_every_encoding_computes_alike(expected: Path, exchange: str, tensor: int, context: int, sequence: bool):
    layout = {"tensor": tensor, "context": context, "sequence": sequence, "context_exchange": exchange}
    run(_divided, tensor * context, expected, layout)


def _divided(file: Path, options: dict[str, Any]) -> None:
    layout, here = ParallelConfig.model_validate(options), joined(**options)
    expected: dict[str, tuple[Results, Results]] = torch.load(file)
    wrong = []
    for name in MODELS:
        if not served(name, layout):
            continue
        model = built(name, layout)
        sum_over_tensor_ranks(model, here.tensor_group)
        try:
            assert_alike(name, results_of(model, here.tensor_group, 0, here.context_group), *expected[name])
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
