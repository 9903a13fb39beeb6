import pytest
import torch

from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import learned_encoding_weights
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.training.encoding_metrics import encoding_metrics
from megatron_mep.training.engine import build_engine
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, VOCABULARY, model_config, training_config


@pytest.mark.parametrize(("tensor", "stages"), [(2, (0, 1)), (1, (2, 3))])
def test_metrics_are_those_of_all_heads_however_they_are_divided(tensor: int, stages: tuple[int, ...]):
    run(_metrics, 2, tensor, stages)


def _metrics(tensor: int, stages: tuple[int, ...]):
    here = joined(tensor=tensor)
    for stage in stages:
        model = build_model(model_config(encoding=LEARNED), ParallelConfig(tensor=tensor), VOCABULARY, seed=0)
        weights = learned_encoding_weights(model)
        # heads 1, 4, 9 and 16 in the first layer, one more in the second
        heads = torch.tensor([1.0, 4.0, 9.0, 16.0]).chunk(tensor)[here.tensor_rank]
        for name, weight in weights.items():
            weight.data.copy_(heads + int(name.startswith("layer_02")))
        build_engine(model, training_config(zero_stage=stage), here)
        metrics = encoding_metrics(weights, here)
        assert len(metrics) == 3 * 2 * 4
        for layer, more in (("layer_01", 0), ("layer_02", 1)):
            found = [metrics[f"{layer}/r2_1/{part}"] for part in ("min", "mean", "max")]
            assert found == pytest.approx([1 + more, 7.5 + more, 16 + more]), stage


def test_an_encoding_that_learns_nothing_has_no_metrics():
    run(_nothing, 1)


def _nothing():
    assert encoding_metrics({}, joined()) == {}
