"""What a decoder is built of: Megatron-core's tensor-parallel layers around our attention and norm."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

from megatron_mep.encodings.base import Encoding, KeyBias
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.nope import Nope
from megatron_mep.model.carrying_layer import CarryingLayer, ContextProjection
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.core_attention import EncodedAttention
from megatron_mep.model.exchange import attention_backend
from megatron_mep.model.norm import HeadNorm, Norm
from megatron_mep.model.reading_attention import ReadingAttention
from megatron_mep.model.seeded_layer import SeededLayer
from megatron_mep.model.stage import lender
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.parallel.seeds import Purpose, seed_for


def decoder_spec(
    model: ModelConfig, parallel: ParallelConfig, layers: Iterable[int], seed: int, dtype: torch.dtype
) -> TransformerBlockSubmodules:
    """The layers of these numbers and the final norm, with the model's encoding in every layer's core attention.

    `dtype` is the type in which queries, keys and values will come.
    """
    encoded, bare = (_layer_spec(model, encoding, parallel, seed, dtype) for encoding in (model.encoding, Nope()))
    specs = [
        replace(
            bare if number in model.nope_layers else encoded, params={"seed": seed_for(Purpose.LAYER, seed, number)}
        )
        for number in layers
    ]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=Norm)


def _layer_spec(
    model: ModelConfig, encoding: Encoding, parallel: ParallelConfig, seed: int, dtype: torch.dtype
) -> ModuleSpec:
    # chosen ahead of the layers: Megatron-core tells an error of theirs in words of its own
    attention = {
        "encoding": encoding,
        "seed": seed,
        "drawn_as": lender(model) if encoding == model.encoding else None,
        "exchange": parallel.context_exchange,
        "training_backend": attention_backend(model, encoding, parallel, dtype, training=True),
        "evaluation_backend": attention_backend(model, encoding, parallel, dtype, training=False),
    }
    head_norm = HeadNorm if model.qk_norm else IdentityOp
    carried = isinstance(encoding, Carried)
    return ModuleSpec(
        module=CarryingLayer if carried else SeededLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=Norm,
            self_attention=ModuleSpec(
                module=ReadingAttention if isinstance(encoding, KeyBias) else SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ColumnParallelLinear,
                    core_attention=ModuleSpec(module=EncodedAttention, params=attention),
                    linear_proj=ContextProjection if carried else RowParallelLinear,
                    q_layernorm=head_norm,
                    k_layernorm=head_norm,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=Norm,
            mlp=ModuleSpec(
                module=MLP,
                submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
            ),
            mlp_bda=get_bias_dropout_add,
        ),
    )
