"""What must hold between a run, its prepared corpus and its ranks, found out before anything is started."""

from collections.abc import Callable
from pathlib import Path

from megatron_mep.config.errors import ConfigError, DataError, Mistake, UserError
from megatron_mep.data.config import TrainTokenizer
from megatron_mep.data.manifest import MANIFEST, Manifest
from megatron_mep.data.plan import Plan, plan_of
from megatron_mep.evaluation.plan import plans, validation_plan
from megatron_mep.rules import batches_fit
from megatron_mep.run import RunConfig
from megatron_mep.start import check_initial


def training_plan(run: RunConfig, corpus: Manifest) -> Plan:
    """How often the run goes through its corpus; a `DataError` where the corpus does not fill a sequence."""
    return plan_of(corpus, run.training.seq_length, run.training.steps * run.training.global_batch_size)


def preflight(run: RunConfig, world_size: int) -> Manifest:
    """The run's corpus, once all that training needs of it and of the ranks holds; all mistakes at once."""
    mistakes = batches_fit(run, world_size)
    try:
        corpus = Manifest.load(Path(run.data.folder))
    except DataError as error:
        raise ConfigError([*mistakes, *error.mistakes]) from None
    mistakes += mistakes_in(lambda: training_plan(run, corpus))
    mistakes += mistakes_in(lambda: check_initial(run, corpus))
    if run.validation.interval:
        num_tokens = corpus.validation.num_tokens
        mistakes += mistakes_in(lambda: validation_plan(run.validation, run.training.seq_length, num_tokens))
    if mistakes:
        raise ConfigError(mistakes)
    return corpus


def vocabulary_of(run: RunConfig) -> int | None:
    """Tokens of the run's vocabulary: the prepared corpus's, or what its file states; `None` where neither tells."""
    folder, tokenizer = Path(run.data.folder), run.data.tokenizer
    if (folder / MANIFEST).is_file():
        return Manifest.load(folder).vocab_size
    return tokenizer.vocab_size if isinstance(tokenizer, TrainTokenizer) else None


def evaluation_mistakes(run: RunConfig, corpus: Manifest) -> list[Mistake]:
    """What stands against evaluating the run as its file says, once it is trained."""
    return mistakes_in(lambda: plans(run.evaluation.resolved(run.training.seq_length), corpus.validation.num_tokens))


def mistakes_in(step: Callable[[], object]) -> list[Mistake]:
    """What a step of the user's own making raises."""
    try:
        step()
    except UserError as error:
        return list(error.mistakes)
    return []
