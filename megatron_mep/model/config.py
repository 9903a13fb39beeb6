"""The `model` section of a run file: the sizes of a decoder and its positional encoding."""

from typing import Literal

from pydantic import Field, PositiveInt

from megatron_mep.attention.choose import BackendName
from megatron_mep.config.base import Config
from megatron_mep.encodings import AnyEncoding
from megatron_mep.encodings.mep import Mep


class ModelConfig(Config):
    """A pre-norm decoder; its vocabulary comes from the tokenizer."""

    num_layers: PositiveInt
    """Transformer layers."""
    hidden_size: PositiveInt
    """Width of the residual stream; num_attention_heads must divide it."""
    num_attention_heads: PositiveInt
    """Query heads of the whole model."""
    num_query_groups: PositiveInt | None = None
    """Key/value heads; as many as query heads where absent (multi-head attention)."""
    ffn_hidden_size: PositiveInt | None = None
    """Width of the feed-forward layer; where absent 4 hidden_size, or 8/3 of it in 64s for swiglu."""
    activation: Literal["swiglu", "gelu"] = "swiglu"
    """The feed-forward layer's activation."""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    """The norm before each part of a layer and after the last layer."""
    norm_epsilon: float = Field(1e-5, gt=0)
    """Added to the variance."""
    qk_norm: bool = False
    """Norms the queries and keys of each head, as `norm` says: the scores are then bounded by its gains alone."""
    linear_bias: bool = False
    """Gives the linear layers biases."""
    tied_embeddings: bool = False
    """Uses the embedding's matrix as the output layer."""
    hidden_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the residual stream while training."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on attention weights while training; only backends that support it accept more than 0."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of initial weights; those that write to the residual stream are divided by sqrt(2 layers)."""
    encoding: AnyEncoding = Mep()
    """The positional encoding, chosen by `name`."""
    nope_layers: tuple[PositiveInt, ...] = ()
    """Layers, counted from 1, whose attention the encoding leaves alone: no positional encoding acts there."""
    attention_backend: BackendName = "auto"
    """How attention is computed: chosen for the device, or by name; `reference` is dense, its memory grows as S^2."""
    attention_epsilon: float = Field(0.0, ge=0, lt=1)
    """Share of any query's softmax that may be dropped, proved, with keys too far back to matter; 0 drops none."""
    document_mask: bool = False
    """Whether attention stops at the beginning of a document; no backend can do so yet, and true is refused."""

    @property
    def head_size(self) -> int:
        """Dimensions of one head, D."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_encoded_layers(self) -> int:
        """Layers in whose attention the encoding acts."""
        return self.num_layers - len(set(self.nope_layers))

    @property
    def groups(self) -> int:
        """Key/value heads of the whole model."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def ffn_size(self) -> int:
        """Width of the feed-forward layer, stated or derived."""
        if self.ffn_hidden_size is not None:
            return self.ffn_hidden_size
        if self.activation == "gelu":
            return 4 * self.hidden_size
        return -(-8 * self.hidden_size // (3 * 64)) * 64
