"""What must hold between the layout of a run and the model that it trains."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from megatron_mep.config.errors import Mistake
from megatron_mep.config.nearest import divisors, nearest
from megatron_mep.encodings.base import ScoreMix
from megatron_mep.encodings.carried import Carried
from megatron_mep.model.count import VOCABULARY_MULTIPLE
from megatron_mep.model.exchange import exchange_mistakes
from megatron_mep.model.stage import Stage, lender

if TYPE_CHECKING:
    from megatron_mep.run import RunConfig


def tensor_ranks_divide_the_heads(run: "RunConfig") -> Iterator[Mistake]:
    """Every tensor rank has as many heads, whole groups or whole copies of one, and as much of the vocabulary.

    That is padded to a multiple of a number: tensor sizes that do not divide it would add other rows to the model.
    """
    heads, groups, tensor = run.model.num_attention_heads, run.model.groups, run.parallel.tensor
    fitting = [
        size
        for size in divisors(heads)
        if (groups % size == 0 or size % groups == 0) and VOCABULARY_MULTIPLE % size == 0
    ]
    if tensor not in fitting:
        rule = (f"must divide model.num_attention_heads={heads}" if heads % tensor
                else f"must divide {VOCABULARY_MULTIPLE}, to a multiple of which the vocabulary is padded: it is "
                "then the same at every size" if VOCABULARY_MULTIPLE % tensor
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


def stages_divide_the_layers(run: "RunConfig") -> Iterator[Mistake]:
    """Every pipeline stage has as many layers."""
    layers, stages = run.model.num_layers, run.parallel.pipeline
    if layers % stages:
        yield Mistake("parallel.pipeline", stages, f"must divide model.num_layers={layers}",
                      f"try {nearest(stages, divisors(layers))}")  # fmt: skip


def chunks_divide_the_layers(run: "RunConfig") -> Iterator[Mistake]:
    """Every chunk of a pipeline stage has as many layers."""
    layers, stages, chunks = run.model.num_layers, run.parallel.pipeline, run.parallel.virtual_pipeline
    if layers % stages == 0 and layers // stages % chunks:
        yield Mistake("parallel.virtual_pipeline", chunks,
                      f"must divide the {layers // stages} layers of each of parallel.pipeline={stages} stages",
                      f"try {nearest(chunks, divisors(layers // stages))}")  # fmt: skip


def stages_keep_their_gradients(run: "RunConfig") -> Iterator[Mistake]:
    """ZeRO leaves gradients where they are until all micro-batches are through the stages."""
    stages, stage = run.parallel.pipeline, run.training.zero_stage
    if stages > 1 and stage != 1:
        why = ("lets gradients be computed by its own backward pass alone" if stage == 0
               else "takes gradients apart in the midst of a schedule")  # fmt: skip
        yield Mistake("training.zero_stage", stage, f"must be 1 under parallel.pipeline={stages}: ZeRO-{stage} {why}",
                      f"set training.zero_stage to 1, or {_undivided(run)} to 1")  # fmt: skip


def stages_share_an_encoding(run: "RunConfig") -> Iterator[Mistake]:
    """Every stage has a layer that uses the weights which all layers share."""
    first, stages, chunks = lender(run.model), run.parallel.pipeline, run.parallel.virtual_pipeline
    if first is None or stages == 1 or run.model.num_layers % (stages * chunks):
        return
    bare = set(run.model.nope_layers)
    idle = [rank for rank in range(stages) if bare.issuperset(Stage.of(run.parallel, rank).layers(run.model))]
    if idle:
        yield Mistake("model.nope_layers", list(run.model.nope_layers),
                      f"leaves pipeline stage {idle[0]} no layer of {run.model.encoding.name}, whose weights all "
                      "layers share", "leave one of its layers out, set model.encoding.shared_by_layers to false, or "
                      f"{_undivided(run)} to 1")  # fmt: skip


def _undivided(run: "RunConfig") -> str:
    """The keys that divide the layers."""
    return "parallel.pipeline" + (" and parallel.virtual_pipeline" if run.parallel.virtual_pipeline > 1 else "")


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
