from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from megatron_mep.model.count import flops_per_token, num_parameters, padded_vocabulary
from megatron_mep.model.gpt import build_model
from megatron_mep.model.stage import Stage
from megatron_mep.parallel.config import ParallelConfig
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, SEQ_LENGTH, VOCABULARY, model_config, samples

MODELS: tuple[dict[str, Any], ...] = (
    {},
    {"encoding": LEARNED, "num_query_groups": 2},
    {"num_query_groups": 1, "ffn_hidden_size": 40, "tied_embeddings": True},
    {"activation": "gelu", "linear_bias": True, "norm": "layernorm"},
    {"activation": "gelu", "linear_bias": True, "num_query_groups": 2, "tied_embeddings": True, "num_layers": 3},
    {"linear_bias": True, "encoding": {"name": "alibi"}},
)


@pytest.mark.parametrize(
    ("vocabulary_size", "tensor_size", "padded"),
    [(300, 1, 384), (300, 4, 384), (384, 2, 384), (385, 1, 512), (300, 3, 384), (300, 5, 640), (1, 1, 128)],
)
def test_a_padded_vocabulary_is_divisible(vocabulary_size: int, tensor_size: int, padded: int):
    assert padded_vocabulary(vocabulary_size, tensor_size) == padded


def test_counts_are_those_of_the_built_model():
    run(_counts, 1)


@pytest.mark.parametrize("sequence", [False, True])
def test_the_count_of_a_tensor_rank_is_that_of_the_built_model(sequence: bool):
    run(_counts_of_a_rank, 2, sequence)


def _counts_of_a_rank(sequence: bool):
    joined(tensor=2, sequence=sequence)
    for changes in (changes for changes in MODELS if changes.get("num_query_groups") != 1):
        config = model_config(**changes)
        model = build_model(config, ParallelConfig(tensor=2, sequence=sequence), VOCABULARY, seed=0)
        held = sum(parameter.numel() for parameter in model.parameters())
        assert num_parameters(config, padded_vocabulary(VOCABULARY, 2), 2) == held, changes


def test_the_count_of_a_stage_is_that_of_the_built_model():
    run(_counts_of_a_stage, 2)


def _counts_of_a_stage():
    rank, padded = joined(pipeline=2).pipeline_rank, padded_vocabulary(VOCABULARY, 1)
    for changes in (*MODELS, {"encoding": {"name": "learned_absolute", "num_positions": SEQ_LENGTH}}):
        config = model_config(**changes | {"num_layers": 4})
        for num_chunks in (1, 2):
            parallel = ParallelConfig(pipeline=2, virtual_pipeline=num_chunks)
            model = build_model(config, parallel, VOCABULARY, seed=0)
            held = sum(parameter.numel() for parameter in model.parameters())
            assert num_parameters(config, padded, 1, Stage.of(parallel, rank)) == held, (changes, num_chunks)


def test_the_operations_of_all_stages_are_those_of_the_model():
    config = model_config(num_layers=4)
    of_stages = [flops_per_token(config, 384, 16, Stage(rank, 2)) for rank in (0, 1)]
    assert sum(of_stages) == flops_per_token(config, 384, 16)


def _counts():
    joined()
    for changes in MODELS:
        config = model_config(**changes)
        model = build_model(config, ParallelConfig(), VOCABULARY, seed=0)
        trained = sum(parameter.numel() for parameter in model.parameters())
        assert num_parameters(config, padded_vocabulary(VOCABULARY, 1)) == trained, changes
        tokens = samples(0, 2)
        with FlopCounterMode(display=False) as counter:
            model(tokens[:, :-1], None, None, labels=tokens[:, 1:]).sum().backward()
        counted = counter.get_flop_counts()["Global"]
        # attention is computed by batched multiplications, or inside one operation
        matrices = sum(flops for operation, flops in counted.items() if operation == torch.ops.aten.mm)
        assert flops_per_token(config, padded_vocabulary(VOCABULARY, 1), 0) * 2 * SEQ_LENGTH == matrices, changes


def test_attention_counts_the_scores_that_the_mask_leaves():
    config = model_config(num_layers=3)

    def of_attention(seq_length: int) -> float:
        return (flops_per_token(config, 384, seq_length) - flops_per_token(config, 384, 0)) * seq_length

    # scores and their use are two products of 2 flops for each of 32 dimensions, computed thrice with the backward pass
    every_score = 3 * 2 * 2 * 32 * 3
    assert of_attention(1000) == every_score * 1000 * 1000 / 2
