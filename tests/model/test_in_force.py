import torch
from torch import nn

from megatron_mep.model.gpt import build_model
from megatron_mep.model.in_force import backends_in_force, in_force, learned_encoding_weights
from megatron_mep.parallel.config import ParallelConfig
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, VOCABULARY, model_config


def test_what_acts_in_each_layer_is_told():
    run(_in_force, 1)


def _in_force():
    joined()
    alibi = _built(encoding={"name": "alibi"}, attention_backend="toeplitz")
    assert in_force(alibi).startswith("layers 1-2: alibi, causal mask, toeplitz attention (fixed bias")
    assert backends_in_force(alibi) == "toeplitz"
    assert learned_encoding_weights(alibi) == {}

    dense = _built(encoding={"name": "alibi"}, attention_backend="reference")
    assert backends_in_force(dense) == "reference"

    dropping = _built(encoding={"name": "rope"}, attention_dropout=0.1)
    assert backends_in_force(dropping) == "plain"
    assert "dropout" in in_force(dropping)
    assert "dropout" not in in_force(dropping.eval())

    half = _built(torch.bfloat16, encoding={"name": "alibi"})
    assert "in fp32" in in_force(half)

    # as where layers were built unlike
    mixed = _built(num_layers=3)
    mixed.decoder.layers[2].self_attention.core_attention.encoding = alibi.decoder.layers[
        0
    ].self_attention.core_attention.encoding
    first, second = in_force(mixed).splitlines()
    assert (first[:15], second[:17]) == ("layers 1-2: mep", "layers 3-3: alibi")


def test_learned_weights_are_named_by_their_layer():
    run(_learned, 1)


def _learned():
    joined()
    model = _built(encoding=LEARNED)
    weights = learned_encoding_weights(model)
    names = [f"{name}_{kernel}" for kernel in (0, 1) for name in ("r1", "r2")]
    assert list(weights) == [f"layer_{layer:02d}/{name}" for layer in (1, 2) for name in names]
    assert weights["layer_02/r1_0"] is model.decoder.layers[1].self_attention.core_attention.encoding_weights.r1_0


def _built(dtype: torch.dtype = torch.float32, **changes: object) -> nn.Module:
    return build_model(model_config(**changes), ParallelConfig(), VOCABULARY, 0, dtype)
