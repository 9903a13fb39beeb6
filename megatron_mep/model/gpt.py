"""Megatron-core's GPTModel, built from a run's sections."""

from functools import partial
from typing import Literal

import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.distributed import ProcessGroup

from megatron_mep.config.errors import ConfigError
from megatron_mep.encodings.base import LayerSizes
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.placement import Embedded
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.copies import copies_of, share_encoding_weights
from megatron_mep.model.count import padded_vocabulary
from megatron_mep.model.encoded_gpt import AddedVectors, EncodedGPT
from megatron_mep.model.exchange import exchange_mistakes
from megatron_mep.model.interleaved import InterleavedGPT, StageModel
from megatron_mep.model.layer_spec import decoder_spec
from megatron_mep.model.norm import largest_score
from megatron_mep.model.stage import Stage, lender
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.gradients import mark_copies
from megatron_mep.parallel.seeds import generator_of
from megatron_mep.parallel.tensor import EncodingWeights

Recompute = Literal["none", "selective", "full"]
"""Activations computed again in the backward pass: none, those of core attention, or all of a layer."""


def build_model(
    model: ModelConfig,
    parallel: ParallelConfig,
    vocabulary_size: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    recompute: Recompute = "none",
) -> StageModel:
    """The part of this tensor rank and pipeline stage, with the initial weights that `seed` fixes at every layout.

    It is built in fp32, to load masters into; `dtype` is what the caller then casts it to. Every matrix is drawn whole
    and then sliced, each layer and its encoding draw from streams of their own: runs that differ in layout or encoding
    alone start from the same weights.
    """
    mistakes = list(exchange_mistakes(model, parallel))
    if mistakes:
        raise ConfigError(mistakes)
    stage = Stage.of(parallel, parallel_state.get_pipeline_model_parallel_rank())
    config = _transformer_config(model, parallel, dtype, recompute)
    last = stage.num_chunks - 1
    chunks = []
    for number, layers in enumerate(stage.chunks(model)):
        torch.manual_seed(seed)
        chunk = EncodedGPT(
            encoding=model.encoding,
            seed=seed,
            lender=lender(model),
            config=config,
            transformer_layer_spec=decoder_spec(model, parallel, layers, seed, dtype),
            vocab_size=padded_vocabulary(vocabulary_size, parallel.tensor),
            share_embeddings_and_output_weights=model.tied_embeddings,
            pre_process=stage.is_first and number == 0,
            post_process=stage.is_last and number == last,
            vp_stage=number,
        )
        _complete(chunk, model, seed)
        chunks.append(chunk)
    built = InterleavedGPT(chunks) if last else chunks[0]
    if lender(model) is not None:
        share_encoding_weights(built)
    for copy in copies_of(built):
        mark_copies(copy.parameter, copy.group)
    return built


def _complete(built: EncodedGPT, model: ModelConfig, seed: int) -> None:
    """Adds what Megatron-core's parts do not know of each other."""
    if isinstance(model.encoding, Embedded) and built.pre_process:
        built.embedding.position_embeddings = _added_vectors(model, model.encoding, seed, built.embedding.tp_group)
    if model.qk_norm:
        for layer in built.decoder.layers:
            attention = layer.self_attention
            core = attention.core_attention
            core.largest_score = partial(largest_score, attention.q_layernorm, attention.k_layernorm, core.scale)


def _added_vectors(model: ModelConfig, encoding: Embedded, seed: int, tensor_group: ProcessGroup) -> AddedVectors:
    """What the encoding adds to the embeddings, computed alike by all tensor ranks."""
    sizes = LayerSizes(model.num_attention_heads, model.hidden_size, model.head_size)
    declared = encoding.embedding_weights(sizes, generator_of(seed, 0))
    assert not any(weight.per_head for weight in declared.values()), "embeddings have no heads"
    weights = EncodingWeights(
        declared,
        sizes.num_heads,
        tensor_group.rank(),
        tensor_group.size(),
        tensor_group,
        gives_parts=False,
    )
    return AddedVectors(model.encoding.name, encoding, model.hidden_size, weights)


def _transformer_config(
    model: ModelConfig, parallel: ParallelConfig, dtype: torch.dtype, recompute: Recompute
) -> TransformerConfig:
    swiglu = model.activation == "swiglu"
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.groups,
        ffn_hidden_size=model.ffn_size,
        gated_linear_unit=swiglu,
        activation_func=torch.nn.functional.silu if swiglu else torch.nn.functional.gelu,
        normalization="RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        layernorm_epsilon=model.norm_epsilon,
        add_bias_linear=model.linear_bias,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        init_method_std=model.init_std,
        # layers that hold other weights than their neighbours cannot be stored as one stack
        hetereogenous_dist_checkpoint=bool(model.nope_layers)
        or isinstance(model.encoding, Carried)
        or getattr(model.encoding, "shared_by_layers", False),
        tensor_model_parallel_size=parallel.tensor,
        context_parallel_size=parallel.context,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if parallel.virtual_pipeline > 1 else None,
        # in one batch, the messages of two interleaved stages to each other would be taken for one another
        batch_p2p_comm=parallel.virtual_pipeline == 1,
        overlap_p2p_comm=parallel.virtual_pipeline > 1,
        # what passes between stages; a Carried encoding's states among it are fp32 or wider
        pipeline_dtype=torch.promote_types(dtype, torch.float32) if isinstance(model.encoding, Carried) else dtype,
        sequence_parallel=parallel.sequence,
        recompute_granularity=None if recompute == "none" else recompute,
        recompute_method="uniform" if recompute == "full" else None,
        recompute_num_layers=1 if recompute == "full" else None,
        # weights drawn whole on the CPU, then sliced: the same start at every tensor size, also on a GPU
        use_cpu_initialization=True,
        # each of these needs Apex or TransformerEngine, or compiles with g++ at run time
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
    )
