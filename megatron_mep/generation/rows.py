"""Generated text as rows: a continuation with everything needed to draw it again, one line of JSON in a file."""

from typing import Any, Literal

from pydantic import AwareDatetime

from megatron_mep.config.base import Config
from megatron_mep.generation.config import GenerationConfig
from megatron_mep.generation.continuation import End


class GenerationFacts(Config):
    """What generated, and how it ran: the same for every row of a call."""

    run: str
    checkpoint: str
    step: int
    encoding: str
    encoding_options: dict[str, Any]
    extrapolation: tuple[dict[str, Any], ...] = ()
    """The length tricks that were put on the encoding, in turn, each with its options."""
    train_length: int
    tokenizer_hash: str
    precision: str
    attention_backend: str
    attention_epsilon: float
    """Share of any query's softmax that attention was allowed to drop."""
    tensor_parallel: int
    settings: GenerationConfig
    """With the seed that this prompt drew from."""
    version: str
    """Of this package."""


class GenerationRow(GenerationFacts):
    """One line of a file of generated text."""

    schema_version: Literal[1] = 1
    created: AwareDatetime
    prompt: str
    prompt_tokens: int
    """How many tokens the prompt has."""
    text: str
    """What followed it; bytes that spell no letter stand as `\\xNN`."""
    tokens: tuple[int, ...]
    """The text's tokens."""
    end: End
    """`length`: there are max_new_tokens of them. `document`: the model ended the document."""
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    """Null where nothing followed the first token."""
    attention_kept: float | None
    """Share of causal scores that attention computed, prompt and steps together; null where it leaves none out."""
    attention_dropped: float | None
    """The most that any query's softmax may have lost by that."""
