"""Generation, composed: a checkpoint is loaded at any tensor size and continues one prompt after the other."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from megatron_mep.attention.work import Work
from megatron_mep.checkpoint.files import RUN_FILE, find
from megatron_mep.checkpoint.progress import Progress, read_progress
from megatron_mep.checkpoint.resume import check_tokenizer
from megatron_mep.config.errors import CheckpointError, ConfigError, DataError, Mistake, UserError
from megatron_mep.config.loader import load_tree
from megatron_mep.data.manifest import TOKENIZER
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.evaluation.rows import append_rows
from megatron_mep.generation.continuation import Continuation, Read, continued
from megatron_mep.generation.prompts import Prompt, read_prompts
from megatron_mep.generation.rows import GenerationFacts, GenerationRow
from megatron_mep.generation.text import TextStream
from megatron_mep.loaded import loaded_whole
from megatron_mep.model.attention_work import take_attention_work
from megatron_mep.model.decode import Decoder, cache_bytes
from megatron_mep.model.encoded_gpt import EncodedGPT
from megatron_mep.model.in_force import backends_in_force, in_force
from megatron_mep.parallel.environment import Environment
from megatron_mep.parallel.groups import Groups, initialize, shutdown
from megatron_mep.run import RunConfig, overridden, run_of
from megatron_mep.training.precision import dtype_of
from megatron_mep.undivided import UNDIVIDED, undivided_mistakes


def generate(
    checkpoint: Path,
    texts: Iterable[str],
    files: Iterable[Path] = (),
    overrides: Iterable[str] = (),
    to: Path | None = None,
) -> None:
    """Continues each text, then the content of each file, as the checkpoint's run file and the overrides say.

    The first rank writes what is generated to standard output, all else to standard error, and a row to `to`.
    Collective: every process of the job calls it, and all of them share the model.
    """
    folder = find(checkpoint)
    # a single token divides neither over the tensor ranks nor over context ranks, and stages would wait for each other
    run = overridden(run_of(load_tree(folder / RUN_FILE)), [*UNDIVIDED, *overrides])
    environment = Environment.discover(os.environ)
    mistakes = list(_layout_mistakes(run, environment.world_size))
    if mistakes:
        raise ConfigError(mistakes)
    tokenizer = _tokenizer_of(run, folder)
    reached = read_progress(folder)
    check_tokenizer(reached, tokenizer.sha256, folder)
    groups = initialize(environment, run.parallel, run.seed)
    try:
        prompts = _of_first_rank(lambda: read_prompts(texts, files, lambda text: tokenizer.encode([text])[0].tolist()))
        model = loaded_whole(run, tokenizer, folder, groups, dtype_of(run.training.precision))
        facts = _facts_of(run, folder, reached, model)
        told = _Teller(groups.rank == 0)
        told.say(f"{folder}, trained at {run.training.seq_length}\n{in_force(model)}")
        if groups.tensor_size > 1:
            told.say(
                f"{groups.tensor_size} tensor ranks, parallel.sequence off: a single token does not divide over them"
            )
        for index, prompt in enumerate(prompts):
            told.say(_announced(prompt, run))
            row = _continued(prompt, model, tokenizer, _for_prompt(facts, index), told, groups)
            told.say(_speed_of(row))
            if to is not None and groups.rank == 0:
                append_rows(to, [row])
    finally:
        shutdown()


def _layout_mistakes(run: RunConfig, world_size: int) -> Iterator[Mistake]:
    divided = list(undivided_mistakes(run, "text is written token by token"))
    yield from divided
    if not divided and run.parallel.data(world_size) > 1:
        yield Mistake("parallel.tensor", run.parallel.tensor, f"must be the world size {world_size}: all ranks share "
                      "the model, and prompts are continued one after the other",
                      f"set it to {world_size}, or start {run.parallel.tensor} processes")  # fmt: skip


def _tokenizer_of(run: RunConfig, folder: Path) -> Tokenizer:
    """All that is needed of the run's corpus."""
    file = Path(run.data.folder) / TOKENIZER
    if not file.is_file():
        rule = f"must hold {TOKENIZER}, the tokenizer that {folder} was trained with"
        raise DataError(Mistake("data.folder", run.data.folder, rule, "give data.folder=... where that file lies"))
    return Tokenizer.load(file)


def _of_first_rank(read: Callable[[], list[Prompt]]) -> list[Prompt]:
    """What the first rank reads, or what is wrong with it, on every rank: standard input is there but once."""
    found: list[Any] = [None, ()]
    if dist.get_rank() == 0:
        try:
            found[0] = read()
        except UserError as error:
            found[1] = error.mistakes
    dist.broadcast_object_list(found, src=0)
    prompts, mistakes = found
    if mistakes:
        raise DataError(mistakes)
    return prompts


def _facts_of(run: RunConfig, folder: Path, reached: Progress, model: EncodedGPT) -> GenerationFacts:
    options = run.model.encoding.model_dump(mode="json")
    return GenerationFacts(
        run=run.name,
        checkpoint=str(folder),
        step=reached.step,
        encoding=options.pop("name"),
        encoding_options=options,
        extrapolation=tuple(trick.model_dump(mode="json") for trick in run.extrapolation),
        train_length=run.training.seq_length,
        tokenizer_hash=reached.tokenizer_sha256,
        precision=run.training.precision,
        attention_backend=backends_in_force(model),
        attention_epsilon=run.model.attention_epsilon,
        tensor_parallel=run.parallel.tensor,
        settings=run.generation,
        version=version("megatron-mep"),
    )


def _for_prompt(facts: GenerationFacts, index: int) -> GenerationFacts:
    """The facts with the seed that this prompt draws from."""
    seed = facts.settings.seed + index
    return facts.model_copy(update={"settings": facts.settings.model_copy(update={"seed": seed})})


def _continued(
    prompt: Prompt,
    model: nn.Module,
    tokenizer: Tokenizer,
    facts: GenerationFacts,
    told: "_Teller",
    groups: Groups,
) -> GenerationRow:
    """The row of a prompt, whose continuation is told while it is drawn."""
    settings = facts.settings
    decoder = Decoder(model, tokenizer.vocab_size, max_length=len(prompt.tokens) + settings.max_new_tokens)
    stream = TextStream(tokenizer.spelling)
    parts: list[str] = []

    def heard(part: str) -> None:
        parts.append(part)
        told.write(part)

    continuation = continued(
        prompt.tokens,
        _reader(decoder, settings.prefill_chunk, facts.checkpoint),
        settings,
        tokenizer.eod,
        lambda token: heard(stream.add(token)),
    )
    heard(stream.end())
    told.write("\n")
    return _row_of(facts, prompt, "".join(parts), continuation, take_attention_work(model, groups))


def _reader(decoder: Decoder, chunk_size: int, checkpoint: str) -> Read:
    def read(tokens: Tensor) -> Tensor:
        logits = decoder.read(tokens, chunk_size=chunk_size)[:, -1]
        if not logits.isfinite().all():
            rule = f"gives logits that are not finite after {decoder.length} tokens"
            raise CheckpointError(Mistake(checkpoint, None, rule, "take an earlier checkpoint, or a shorter prompt"))
        return logits

    return read


def _row_of(facts: GenerationFacts, prompt: Prompt, text: str, continuation: Continuation, work: Work) -> GenerationRow:
    return GenerationRow(
        **dict(facts),
        created=datetime.now(UTC),
        prompt=prompt.text,
        prompt_tokens=len(prompt.tokens),
        text=text,
        tokens=continuation.tokens,
        end=continuation.end,
        prefill_tokens_per_s=continuation.prefill_tokens_per_s,
        attention_kept=work.kept if work.causal_pairs else None,
        attention_dropped=work.dropped if work.causal_pairs else None,
        decode_tokens_per_s=continuation.decode_tokens_per_s,
    )


def _announced(prompt: Prompt, run: RunConfig) -> str:
    """How long a prompt and its continuation are, and what the cache takes."""
    length = len(prompt.tokens) + run.generation.max_new_tokens
    dtype = dtype_of(run.training.precision)
    gib = cache_bytes(run.model, run.parallel.tensor, length, dtype) / 2**30
    trained = run.training.seq_length
    beyond = f", {length / trained:.1f} times the training length {trained}" if length > trained else ""
    ranks = " on each rank" if run.parallel.tensor > 1 else ""
    return f"{prompt.place}: {len(prompt.tokens)} tokens, at most {length}{beyond}; cache {gib:.2g} GiB{ranks}"


def _speed_of(row: GenerationRow) -> str:
    decode = "" if row.decode_tokens_per_s is None else f", decode {row.decode_tokens_per_s:,.1f} tokens/s"
    ended = ", the document ended" if row.end == "document" else ""
    kept = "" if row.attention_kept is None else (
        f", attention computed {row.attention_kept:.1%}, dropped at most {row.attention_dropped:.1e}"
    )  # fmt: skip
    return f"  {len(row.tokens)} tokens{ended}; prefill {row.prefill_tokens_per_s:,.1f} tokens/s{decode}{kept}"


class _Teller:
    """Tells the person who waits, on one rank: standard output holds generated text alone."""

    def __init__(self, tells: bool) -> None:
        self._tells = tells

    def write(self, text: str) -> None:
        """Generated text."""
        if self._tells:
            print(text, end="", flush=True)  # noqa: T201

    def say(self, line: str) -> None:
        """A line beside it."""
        if self._tells:
            print(line, file=sys.stderr, flush=True)  # noqa: T201
