"""Where a run starts: from its own latest checkpoint, from the weights of another run's, or from nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_mep.checkpoint.attempt import Attempt
from megatron_mep.checkpoint.files import RUN_FILE, exists, find, take_over
from megatron_mep.checkpoint.load import load_initial_weights, load_training_state
from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.checkpoint.progress import Progress, read_progress
from megatron_mep.checkpoint.resume import check_continues, check_corpus, check_tokenizer, differences
from megatron_mep.checkpoint.state import Sharded
from megatron_mep.config.errors import CheckpointError, Mistake
from megatron_mep.config.loader import load_tree
from megatron_mep.data.manifest import Manifest
from megatron_mep.model.config import ModelConfig
from megatron_mep.parallel.groups import Groups
from megatron_mep.run import RunConfig, run_of

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

NETWORK = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "groups",
    "ffn_hidden_size": "ffn_size",
    "activation": "activation",
    "norm": "norm",
    "qk_norm": "qk_norm",
    "linear_bias": "linear_bias",
    "tied_embeddings": "tied_embeddings",
}
"""The keys of `model` that say what its matrices are, and where their values are; shapes alone do not tell heads."""


@dataclass(frozen=True)
class Start:
    """Where these ranks start, as the only ones that write the run's checkpoints."""

    attempt: Attempt
    own: Path | None
    """The run's own checkpoint, which everything is taken up from."""
    init_from: Path | None
    """The checkpoint whose weights are taken where the run has none of its own."""
    told: tuple[str, ...]
    """What a person should know of it, a line each."""

    def take_up(self, engine: "DeepSpeedEngine", template: Sharded, groups: Groups) -> Progress | None:
        """Loads what there is into a fresh engine; how far the run had come by its own checkpoint."""
        if self.own is not None:
            return load_training_state(self.own, engine, template, groups)
        if self.init_from is not None:
            load_initial_weights(self.init_from, engine, template, groups)
        return None


def start_of(run: RunConfig, corpus: Manifest) -> Start:
    """Where the run starts; a `CheckpointError` where that cannot be, before an earlier attempt is put to an end."""
    told_by_rank_0(lambda: (_own_checkpoint(run, corpus), _initial(run, corpus)))
    root = checkpoints(run)
    attempt = told_by_rank_0(lambda: take_over(root))
    # the earlier attempt may have written another one meanwhile
    own, told = told_by_rank_0(lambda: _own_checkpoint(run, corpus))
    if run.init_from is None:
        return Start(attempt, own, None, told)
    if own is not None:
        ignored = f"init_from={run.init_from} is not read: the run goes on from its own {own}"
        return Start(attempt, own, None, (*told, ignored))
    initial, told = told_by_rank_0(lambda: _initial(run, corpus))
    return Start(attempt, None, initial, told)


def checkpoints(run: RunConfig) -> Path:
    """The folder of the run's checkpoints."""
    return run.folder / "checkpoints"


def check_initial(run: RunConfig, corpus: Manifest) -> None:
    """A `CheckpointError` where `init_from` would be read and cannot be."""
    if not exists(checkpoints(run)):
        _initial(run, corpus)


def _own_checkpoint(run: RunConfig, corpus: Manifest) -> tuple[Path | None, tuple[str, ...]]:
    root = checkpoints(run)
    if not exists(root):
        return None, ()
    folder = find(root)
    resolved = run.model_dump(mode="json")
    told = check_continues(folder / RUN_FILE, resolved, lambda tree: run_of(tree).model_dump(mode="json"))
    check_corpus(read_progress(folder), corpus.fingerprint, folder)
    return folder, tuple(told)


def _initial(run: RunConfig, corpus: Manifest) -> tuple[Path | None, tuple[str, ...]]:
    if run.init_from is None:
        return None, ()
    try:
        folder = find(Path(run.init_from))
    except CheckpointError as error:
        raise CheckpointError(
            Mistake("init_from", run.init_from, f"{mistake.key} {mistake.rule}", mistake.remedy)
            for mistake in error.mistakes
        ) from None
    reached = read_progress(folder)
    check_tokenizer(reached, corpus.tokenizer_sha256, folder)
    before = run_of(load_tree(folder / RUN_FILE))
    _refuse_another_network(before.model, run.model, folder)
    told = (
        f"weights from {folder} ({before.name}, step {reached.step:,}, {reached.consumed_tokens:,} tokens); "
        "optimizer, schedule and data start anew",
        *(
            f"model.{key} is {now!r} here, it was {then!r} there"
            for key, then, now in differences(before.model.model_dump(mode="json"), run.model.model_dump(mode="json"))
        ),
    )
    return folder, told


def _refuse_another_network(before: ModelConfig, now: ModelConfig, folder: Path) -> None:
    values = [(key, getattr(before, name), getattr(now, name)) for key, name in NETWORK.items()]
    mistakes = [
        Mistake(f"model.{key}", here, f"must be {there!r} as in {folder}, which init_from names", f"set it to {there}")
        for key, there, here in values
        if here != there
    ]
    if mistakes:
        raise CheckpointError(mistakes)
