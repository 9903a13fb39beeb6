"""The configuration of an exported model."""

from typing import Any

from transformers import PretrainedConfig


class MepConfig(PretrainedConfig):
    """The sizes of a decoder, and its positional encoding as `encoding_mep` builds it."""

    model_type = "megatron_mep"

    def __init__(
        self,
        vocab_size: int = 2,
        hidden_size: int = 4,
        num_hidden_layers: int = 1,
        num_attention_heads: int = 1,
        num_key_value_heads: int = 1,
        head_dim: int = 4,
        intermediate_size: int = 4,
        hidden_act: str = "silu",
        norm: str = "rmsnorm",
        norm_epsilon: float = 1e-5,
        qk_norm: bool = False,
        linear_bias: bool = False,
        initializer_range: float = 0.02,
        train_length: int = 1,
        encoding: dict[str, Any] | None = None,
        extrapolation: list[dict[str, Any]] | None = None,
        encoding_weights: dict[str, Any] | None = None,
        encoding_weights_of: list[int | None] | None = None,
        embedding_weights: dict[str, Any] | None = None,
        nope_layers: list[int] | None = None,
        tie_word_embeddings: bool = False,
        use_cache: bool = True,
        **options: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act  # silu: with a gate; gelu: without
        self.norm = norm
        self.norm_epsilon = norm_epsilon
        self.qk_norm = qk_norm
        self.linear_bias = linear_bias
        self.initializer_range = initializer_range
        self.train_length = train_length
        self.encoding = encoding
        self.extrapolation = extrapolation or []
        self.encoding_weights = encoding_weights or {}
        # for each layer the one, counted from 1, whose weights of the encoding it uses
        self.encoding_weights_of = encoding_weights_of or [None] * num_hidden_layers
        self.embedding_weights = embedding_weights or {}
        self.nope_layers = nope_layers or []
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **options)
        # transformers 5 keeps it where a class says so alone
        self.tie_word_embeddings = tie_word_embeddings
