"""Tasks of lm-evaluation-harness, composed: a checkpoint is loaded at any tensor size and answers their requests."""

import os
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megatron_mep.checkpoint.files import RUN_FILE, find
from megatron_mep.checkpoint.one_rank import told_by_rank_0
from megatron_mep.checkpoint.progress import read_progress
from megatron_mep.config.errors import Mistake
from megatron_mep.config.loader import load_tree
from megatron_mep.data.manifest import TOKENIZER, Manifest
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.facts import facts_of
from megatron_mep.harness.length import HarnessError, MaxLength
from megatron_mep.harness.share import share_of
from megatron_mep.harness.tasks import Tasks
from megatron_mep.loaded import loaded_whole, opening
from megatron_mep.model.in_force import in_force
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import Groups, initialize, shutdown
from megatron_mep.parallel.watchdog import Watchdog
from megatron_mep.run import RunConfig, overridden, run_of
from megatron_mep.training.precision import dtype_of
from megatron_mep.undivided import UNDIVIDED, corpus_for

if TYPE_CHECKING:
    from megatron_mep.harness.language_model import Asked

WHY_UNDIVIDED = "requests have lengths of their own, and text is written token by token"


def check_installed() -> None:
    """Refuses where lm-evaluation-harness is not there."""
    if find_spec("lm_eval") is None:
        raise HarnessError(Mistake("mep harness", None, "needs lm_eval", "pip install 'megatron-mep[harness]'"))


def harness(
    checkpoint: Path, tasks: Tasks, max_length: MaxLength, overrides: Iterable[str] = (), to: Path | None = None
) -> None:
    """Puts tasks to a checkpoint; the first rank prints the table, and writes the results into a folder.

    Collective: every process of the job calls it. Tensor ranks share the model, data ranks the requests. Tasks and
    their requests are looked through before the model is loaded.
    """
    check_installed()
    # they import the harness
    from megatron_mep.harness.asking import put
    from megatron_mep.harness.language_model import MepLM

    folder = find(checkpoint)
    run = overridden(run_of(load_tree(folder / RUN_FILE)), [*UNDIVIDED, *overrides])
    environment = Environment.discover(os.environ)
    corpus = corpus_for(run, folder, environment.world_size, WHY_UNDIVIDED)
    tokenizer = Tokenizer.load(Path(run.data.folder) / TOKENIZER)
    job, of_run = run.job, folder.parent.parent
    groups = initialize(environment, run.parallel, run.seed, job.collective_timeout_s, job.startup_s)
    try:
        with Watchdog.of_job(groups.rank, groups.world_size, job, of_run) as watchdog:
            results = to or of_run / "harness"
            told_by_rank_0(lambda: _make(results))
            asked = cache(lambda: _asked(run, corpus, tokenizer, folder, groups, watchdog.tick))
            model = MepLM(asked, tokenizer, max_length, share_of(groups))
            put(tasks, model, f"{run.name}/{folder.name}", folder, results, watchdog.tick)
    finally:
        shutdown()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule = f"must be a folder that can be written ({error.strerror})"
        raise HarnessError(Mistake("--to", str(folder), rule, "name another folder")) from None


def _asked(
    run: RunConfig, corpus: Manifest, tokenizer: Tokenizer, folder: Path, groups: Groups, came_on: Callable[[], None]
) -> "Asked":
    """The model, loaded; collective."""
    from megatron_mep.harness.language_model import Asked

    model = loaded_whole(run, tokenizer, folder, groups, dtype_of(run.training.precision))
    if groups.rank == 0:
        print(f"{folder}, trained at {run.training.seq_length}\n{in_force(model)}", flush=True)  # noqa: T201
    facts = facts_of(run, corpus, read_progress(folder), groups, model, "evaluation", str(folder))

    @torch.no_grad()
    def logits(tokens: Tensor) -> Tensor:
        # one pass over the whole text: some length tricks look at how much is read at once
        after: Tensor = model(tokens.to(groups.device), None, None, runtime_gather_output=True)
        came_on()
        return after[..., : tokenizer.vocab_size]

    return Asked(
        logits=logits,
        opened=opening(model, tokenizer.vocab_size, run.generation.prefill_chunk, came_on),
        batch_tokens=run.evaluation.batch_tokens,
        checkpoint=str(folder),
        facts=facts.model_dump(mode="json"),
    )
