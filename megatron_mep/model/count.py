"""How many weights a model has, and what a token costs, from its sizes alone."""

import math
from collections.abc import Sequence

import torch

from megatron_mep.encodings.base import LayerSizes, Sharable, Weight
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.placement import Embedded
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.stage import WHOLE, Stage

VOCABULARY_MULTIPLE = 128
"""The vocabulary is padded to a multiple of this: the same at every tensor size that divides it."""


def padded_vocabulary(vocabulary_size: int, tensor_size: int) -> int:
    """The vocabulary's size rounded up so that every tensor rank holds as much of it."""
    multiple = math.lcm(VOCABULARY_MULTIPLE, tensor_size)
    return -(-vocabulary_size // multiple) * multiple


def num_parameters(model: ModelConfig, vocabulary_size: int, tensor_size: int = 1, stage: Stage = WHOLE) -> int:
    """Trained weights with a (padded) vocabulary of `vocabulary_size`: of the whole model, or of one rank.

    Of pipeline stages, the first has the embedding, and the last the final norm and the output layer, whose matrix is
    the embedding's again where the two are tied.
    """
    layers = stage.layers(model)
    per_dimension = 2 if model.norm == "layernorm" else 1
    norm, head_norm = per_dimension * model.hidden_size, per_dimension * model.head_size
    norms = 2 * norm + (2 * head_norm if model.qk_norm else 0)
    matrices = layer_matrices(model)
    divided, whole = sum(rows * columns for rows, columns in matrices), norms
    if model.linear_bias:
        # every second matrix puts out the residual stream, which each rank has whole, and its bias with it
        divided += sum(rows for rows, _ in matrices[::2])
        whole += sum(rows for rows, _ in matrices[1::2])
    embeddings = num_embeddings(model, stage) * vocabulary_size * model.hidden_size // tensor_size
    count = embeddings + (norm if stage.is_last else 0) + len(layers) * (divided // tensor_size + whole)
    return count + _encoding_weights(model, tensor_size, layers, stage.is_first)


def num_embeddings(model: ModelConfig, stage: Stage = WHOLE) -> int:
    """Matrices of the vocabulary on a pipeline stage."""
    return 1 if stage.is_first and stage.is_last and model.tied_embeddings else stage.is_first + stage.is_last


def flops_per_token(model: ModelConfig, vocabulary_size: int, seq_length: int, stage: Stage = WHOLE) -> float:
    """Forward and backward, with the causal convention: attention counts the scores that the mask leaves.

    6 for each weight of a matrix (2 forward, 4 backward), the output layer included and the embedding look-up not;
    and 6 S hidden_size for each layer's attention, half of the 12 S hidden_size of "PaLM" (arXiv:2204.02311,
    appendix B), which counts masked scores too. Recomputed activations are not counted.
    """
    of_layer = sum(rows * columns for rows, columns in layer_matrices(model)) + seq_length * model.hidden_size
    output = vocabulary_size * model.hidden_size if stage.is_last else 0
    return 6.0 * (len(stage.layers(model)) * of_layer + output)


def flops_per_token_of_all_scores(model: ModelConfig, vocabulary_size: int, seq_length: int) -> float:
    """The same with the non-causal convention, that of "PaLM": attention counts masked scores too."""
    causal = flops_per_token(model, vocabulary_size, seq_length)
    return causal + 6.0 * model.num_layers * seq_length * model.hidden_size


def layer_matrices(model: ModelConfig) -> list[tuple[int, int]]:
    """Outputs and inputs of a layer's linear layers."""
    keys = model.groups * model.head_size
    gate = 2 if model.activation == "swiglu" else 1
    return [
        (model.hidden_size + 2 * keys, model.hidden_size),
        (model.hidden_size, model.hidden_size),
        (gate * model.ffn_size, model.hidden_size),
        (model.hidden_size, model.ffn_size),
    ]


def _encoding_weights(model: ModelConfig, tensor_size: int, layers: Sequence[int], is_first: bool) -> int:
    encoding, sizes = model.encoding, LayerSizes(model.num_attention_heads, model.hidden_size, model.head_size)
    encoded = [number for number in layers if number not in model.nope_layers]
    if isinstance(encoding, Sharable) and encoding.shared_by_layers:
        encoded = encoded[:1]
    if isinstance(encoding, Carried):
        # the last layer hands no states on
        encoded = [number for number in encoded if number < model.num_layers]
    count = len(encoded) * _learned(encoding.layer_weights(sizes, torch.Generator()), tensor_size)
    if isinstance(encoding, Embedded) and is_first:
        count += _learned(encoding.embedding_weights(sizes, torch.Generator()), tensor_size)
    return count


def _learned(weights: dict[str, Weight], tensor_size: int) -> int:
    return sum(
        weight.value.numel() // (tensor_size if weight.per_head else 1) for weight in weights.values() if weight.learned
    )
