"""The `generation` section of a run file: how a checkpoint continues a prompt."""

from pydantic import Field

from megatron_mep.config.base import Config


class GenerationConfig(Config):
    """How many tokens follow a prompt, and how each is chosen."""

    max_new_tokens: int = Field(default=128, gt=0)
    """Tokens after the prompt, at most."""
    temperature: float = Field(default=0.8, ge=0)
    """Divides the logits before a token is drawn. 0: the likeliest token, whatever top_k and top_p say."""
    top_k: int | None = Field(default=None, gt=0)
    """Draw from this many likeliest tokens. None: from all."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Draw from the fewest likeliest tokens that hold this share of the probability, of those that top_k leaves."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Fixes what the first prompt draws; the n-th after it draws from seed + n, so that a prompt may be given twice."""
    prefill_chunk: int = Field(default=512, gt=0)
    """Tokens of a prompt that pass through the model at once; memory beside the cache grows with it."""
    stop_at_end: bool = True
    """Stop where the model ends the document, rather than go on with the next one."""
