"""A model whose sequences are shared by context ranks computes what it computes on one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megatron_mep.config.errors import ConfigError
from megatron_mep.model.attention_work import take_attention_work
from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import in_force
from megatron_mep.model.score import scorer
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.gradients import sum_over_tensor_ranks
from megatron_mep.parallel.groups import Groups, seed_streams
from tests.support.distributed import joined, run
from tests.support.results import Results, assert_alike, losses_of, results_of, undivided_results
from tests.support.tiny import LAYOUT_RTOL, LEARNED, VOCABULARY, model_config, samples
from tests.support.tolerance import assert_exact_equal

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
OF_PAIRS = {"fox", "cable", "fox with gains", "cope", "dape", "hirope", "xpos", "rpe_3d",
            "bipe_alibi"}  # fmt: skip
"""What a ring refuses."""
WHOLE_HEADS = {"tape", "dape"}
"""What no heads may be taken from."""


EXCHANGES = ("all_gather", "ulysses", "ring")


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


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize(
    ("tensor", "context", "sequence"),
    [
        (1, 2, False),
        pytest.param(1, 4, False, marks=pytest.mark.slow),
        pytest.param(2, 2, True, marks=pytest.mark.slow),
    ],
)
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


def test_recomputed_activations_change_nothing():
    run(_recompute, 4)


def _recompute() -> None:
    here = joined(tensor=2, context=2)
    for exchange in EXCHANGES:
        layout = ParallelConfig(tensor=2, sequence=True, context=2, context_exchange=exchange)
        for name in ("learned mep", "rope", "fire", "fox with gains"):
            if not served(name, layout):
                continue
            expected = _gradients(name, layout, here, "none")
            for recompute in ("selective", "full"):
                for actual, plain in zip(_gradients(name, layout, here, recompute), expected, strict=True):
                    assert_exact_equal(actual, plain, f"{name} by {exchange}, {recompute}")


def _gradients(name: str, layout: ParallelConfig, here: Groups, recompute: Any) -> list[Tensor]:
    model = build_model(
        model_config(**MODELS[name], hidden_dropout=0.1), layout, VOCABULARY, SEED, torch.float32, recompute
    )
    sum_over_tensor_ranks(model, here.tensor_group)
    seed_streams(SEED + here.stream)
    losses = losses_of(model, samples(0, 2))
    losses.mean().backward()
    return [losses.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


LONG = 1024
WINDOWED = {"encoding": {"name": "alibi"}, "attention_epsilon": 1e-4, "qk_norm": True}


def test_keys_too_far_back_are_dropped_and_counted_as_on_one_rank(tmp_path: Path):
    file = tmp_path / "scores.pt"
    run(_scored_alone, 1, file)
    run(_scored_together, 2, file)


def _scored_alone(file: Path) -> None:
    here = joined()
    model = build_model(model_config(**WINDOWED), ParallelConfig(), VOCABULARY, SEED)
    scores = scorer(model, here)(samples(0, 2, LONG))
    torch.save((scores, take_attention_work(model, here)), file)


def _scored_together(file: Path) -> None:
    here = joined(context=2)
    expected, alone = torch.load(file, weights_only=False)
    assert alone.kept < 0.7, "hardly a key is dropped"
    for exchange in ("all_gather", "ulysses"):
        layout = ParallelConfig(context=2, context_exchange=exchange)
        model = build_model(model_config(**WINDOWED), layout, VOCABULARY, SEED)
        # every rank gives whole sequences, and gets the scores of all their tokens
        scores = scorer(model, here)(samples(0, 2, LONG))
        assert torch.allclose(scores, expected, rtol=LAYOUT_RTOL, atol=0), exchange
        together = take_attention_work(model, here)
        assert together.causal_pairs == alone.causal_pairs, exchange
        assert together.kept == pytest.approx(alone.kept, abs=0.1), exchange
        assert 0 < together.dropped <= 1e-4, exchange


def test_it_is_told_how_ranks_share_a_sequence_and_refused_where_they_cannot():
    run(_told, 2)


def _told() -> None:
    joined(context=2)
    for exchange in EXCHANGES:
        layout = ParallelConfig(context=2, context_exchange=exchange)
        assert f"causal mask, shared by 2 context ranks by {exchange}, " in in_force(built("rope", layout))
    ring = ParallelConfig(context=2, context_exchange="ring")
    assert "by ring, ring attention (mep's bias by distance: exact" in in_force(built("mep", ring))
    assert "by ring, ring attention (fire's bias by positions: exact" in in_force(built("fire", ring))
    # also for an encoding that only evaluation puts in the place of the run's
    with pytest.raises(ConfigError, match=r"parallel\.context_exchange"):
        built("fox", ring)
