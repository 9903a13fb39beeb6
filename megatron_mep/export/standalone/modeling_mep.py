"""An exported model as transformers loads and calls it."""

from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import logging

from megatron_mep.encodings.base import LayerSizes, Weight
from megatron_mep.encodings.placement import Embedded
from megatron_mep.export.standalone.classes_mep import CLASSES
from megatron_mep.export.standalone.configuration_mep import MepConfig
from megatron_mep.export.standalone.decoder_mep import Decoder
from megatron_mep.export.standalone.encoding_mep import encoding_of
from megatron_mep.export.standalone.parts_mep import EncodingWeights

logger = logging.get_logger(__name__)

# transformers calls it `cache` now, and `past_key_values` before
CACHE = "cache" if "cache" in {field.name for field in fields(CausalLMOutputWithPast)} else "past_key_values"


class MepForCausalLM(PreTrainedModel, GenerationMixin):
    """The decoder and its output layer."""

    config_class = MepConfig
    base_model_prefix = "model"
    _no_split_modules: ClassVar[list[str]] = ["Layer"]

    def __init__(self, config: MepConfig) -> None:
        super().__init__(config)
        assert config.encoding is not None, "an export states what its encoding is"
        encoding = encoding_of(config.encoding, config.extrapolation, config.train_length, CLASSES)
        self.model = Decoder(config, encoding)
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.encoding_weights or config.embedding_weights:
            # transformers refuses names that no weight has
            self._keep_in_fp32_modules_strict = ["encoding_weights"]
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens, which is the output layer too where the two are tied."""
        return self.model.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Puts another embedding in its place."""
        self.model.embed_tokens = value

    def get_output_embeddings(self) -> nn.Module | None:
        """The output layer, `None` where it is the embedding."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Puts another output layer in its place."""
        self.lm_head = new_embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: DynamicCache | None = None,
        past_key_values: DynamicCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Tokens `[B, S]` that follow those in the cache, which is `cache` or, by its older name, `past_key_values`.

        The mask `[B, K]` of all tokens, cached ones included, is 0 for padding, which stands before a text. Behind one
        it may stand where no more tokens follow. The encoding says where tokens are: there are no position ids.
        """
        if cache is not None and past_key_values is not None:
            raise ValueError("`cache` and `past_key_values` are two names of one argument: give one of them")
        cache = past_key_values if cache is None else cache
        if cache is None and (self.config.use_cache if use_cache is None else use_cache) and not self.training:
            cache = DynamicCache()
        if cache is not None and not isinstance(cache, DynamicCache):
            raise ValueError(f"the cache must be a DynamicCache, not a {type(cache).__name__}")
        num_read = 0 if cache is None else cache.get_seq_length()
        num_tokens = num_read + input_ids.size(1)
        if num_tokens > self.config.train_length:
            logger.warning_once(f"the model is read beyond the {self.config.train_length} tokens it was trained at")
        padding = _padding(attention_mask, input_ids, num_tokens)
        keep = None if cache is None else partial(_kept, cache)
        hidden = self.model(input_ids, padding, num_read, keep)[:, -logits_to_keep:]
        output_layer = self.model.embed_tokens if self.lm_head is None else self.lm_head
        logits = functional.linear(hidden, output_layer.weight)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        output = CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: cache})
        return output.to_tuple() if return_dict is False else output

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """What `forward` is given for the next tokens: those that the cache has not seen, and the mask of all.

        transformers looks for the name `kwargs`: it says that they may be the arguments of `forward`.
        """
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        inputs = {name: kwargs.get(name) for name in ("attention_mask", "use_cache")}
        inputs["logits_to_keep"] = kwargs.get("logits_to_keep") or 0
        num_read = 0 if cache is None else cache.get_seq_length()
        return {"input_ids": input_ids[:, num_read:], CACHE: cache, **inputs}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """What a module starts training from, where nothing is loaded."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.RMSNorm | nn.LayerNorm):
            module.reset_parameters()
        if isinstance(module, EncodingWeights):
            declared = self._declared(of_embeddings=module is self.model.encoding_weights)
            for name, weight in module().items():
                weight.copy_(declared[name].value)

    def _declared(self, of_embeddings: bool) -> dict[str, Weight]:
        config, encoding = self.config, self.model.encoding
        sizes = LayerSizes(config.num_attention_heads, config.hidden_size, config.head_dim)
        # on the CPU, where a generator of one's own can be
        with torch.device("cpu"):
            generator = torch.Generator().manual_seed(torch.initial_seed())
            if not of_embeddings:
                return encoding.layer_weights(sizes, generator)
            return encoding.embedding_weights(sizes, generator) if isinstance(encoding, Embedded) else {}


def _kept(cache: DynamicCache, slot: int, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Puts two tensors `[B, *, S, *]` behind those that a slot of the cache holds.

    What encodings keep beside keys and values is in further layers of the cache, so that whatever is done to the
    cache's sequences, as by beam search, is done to it too.
    """
    while len(cache.layers) <= slot:
        cache.layers.append(DynamicLayer())
    kept: tuple[Tensor, Tensor] = cache.update(first, second, slot)
    return kept


def _padding(mask: Tensor | None, input_ids: Tensor, num_tokens: int) -> Tensor:
    """How many tokens before its text each sequence has, `[B]`."""
    if mask is None:
        return input_ids.new_zeros(len(input_ids))
    if mask.shape != (len(input_ids), num_tokens):
        raise ValueError(
            f"the attention mask must be {[len(input_ids), num_tokens]}, of cached tokens too, not {list(mask.shape)}"
        )
    seen = mask != 0
    if (seen[:, 1:] & ~seen[:, :-1]).sum(-1).gt(seen[:, 0].logical_not()).any():
        raise ValueError("padding must stand before a text, or behind one that no tokens follow, not within it")
    return (~seen).long().cumprod(-1).sum(-1)
