"""What must hold between the layout of a run and the model that it trains."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from megatron_mep.config.errors import Mistake
from megatron_mep.config.nearest import divisors, nearest
from megatron_mep.encodings.base import ScoreMix
from megatron_mep.encodings.carried import Carried
from megatron_mep.model.exchange import exchange_mistakes

if TYPE_CHECKING:
    from megatron_mep.run import RunConfig


def tensor_ranks_divide_the_heads(run: "RunConfig") -> Iterator[Mistake]:
    """Every tensor rank has as many heads, and whole groups or whole copies of one."""
    heads, groups, tensor = run.model.num_attention_heads, run.model.groups, run.parallel.tensor
    fitting = [size for size in divisors(heads) if groups % size == 0 or size % groups == 0]
    if tensor not in fitting:
        rule = (f"must divide model.num_attention_heads={heads}" if heads % tensor
                else f"must divide model.num_query_groups={groups}, or be a multiple of it")  # fmt: skip
        yield Mistake("parallel.tensor", tensor, rule, f"try {nearest(tensor, fitting)}")


def tensor_ranks_divide_the_feed_forward(run: "RunConfig") -> Iterator[Mistake]:
    """Every tensor rank has as much of the feed-forward layer."""
    ffn, tensor = run.model.ffn_size, run.parallel.tensor
    if ffn % tensor:
        yield Mistake("parallel.tensor", tensor, f"must divide the feed-forward width {ffn}",
                      f"set model.ffn_hidden_size to {-(-ffn // tensor) * tensor}")  # fmt: skip


def ranks_divide_the_sequence(run: "RunConfig") -> Iterator[Mistake]:
    """Every rank has as many tokens."""
    length, multiple = run.training.seq_length, run.parallel.sequence_multiple
    if length % multiple:
        yield Mistake("training.seq_length", length, f"must be a multiple of {multiple} {run.parallel.dividing}",
                      f"try {-(-length // multiple) * multiple}")  # fmt: skip


def mixed_heads_are_on_one_rank(run: "RunConfig") -> Iterator[Mistake]:
    """What reads all heads has them all."""
    encoding, tensor = run.model.encoding, run.parallel.tensor
    if isinstance(encoding, ScoreMix | Carried) and encoding.across_heads and tensor > 1:
        mixed = "states" if isinstance(encoding, Carried) else "scores"
        rule = f"must be 1 under {encoding.name}, which mixes the {mixed} of all heads"
        yield Mistake("parallel.tensor", tensor, rule, "set it to 1")


def exchange_serves_the_model(run: "RunConfig") -> Iterator[Mistake]:
    """Context ranks can share the model's attention in the way that is stated."""
    yield from exchange_mistakes(run.model, run.parallel)
