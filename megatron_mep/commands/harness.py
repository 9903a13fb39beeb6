"""`mep harness`: the tasks of lm-evaluation-harness, put to a checkpoint."""

import argparse
from pathlib import Path
from typing import Any

from megatron_mep.commands.arguments import Verbs, add_verb, positive
from megatron_mep.harness.length import MaxLength
from megatron_mep.harness.options import no_chat_template, samples, settings
from megatron_mep.harness.tasks import Seeds, Tasks

OVERRIDES = (
    "key.sub=value ...: overrides of the run file, for example parallel.tensor=2, generation.prefill_chunk=4096 or "
    "evaluation.batch_tokens=65536 (tokens in one forward pass)"
)
KEY_VALUES = "key=value,key=value or a JSON object; may be given again"


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "harness", _harness, "put tasks of lm-evaluation-harness to a checkpoint")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    parser.add_argument("--tasks", required=True, metavar="TASK,TASK,...", help="names or patterns of tasks and groups "
                        "of lm-eval, or files of tasks")  # fmt: skip
    parser.add_argument("--max-length", required=True, type=positive, metavar="L", help="the most tokens that are "
                        "read at once, generated ones included: the model itself has no limit")  # fmt: skip
    parser.add_argument("--truncate", action="store_true", help="cut contexts that are longer from the left, as "
                        "lm-eval does, where they are refused without this")  # fmt: skip
    parser.add_argument("--to", type=Path, metavar="DIR", help="results go there, not into the run's folder harness")
    _add_questions(parser)
    _add_answers(parser)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    """Options of lm-eval that say what is asked."""
    _add(parser, "--include-path", type=Path, metavar="DIR", help="a folder of tasks of your own")
    _add(parser, "--num-fewshot", type=_count, metavar="N", help="examples before each question")
    which = parser.add_mutually_exclusive_group()
    _add(which, "--limit", type=_limit, metavar="N", help="questions of each task: a number, or a share below 1")
    _add(which, "--samples", metavar="JSON", help="numbers of the questions by task, or a file of them")
    _add(parser, "--metadata", action="append", default=[], metavar="KEY=VALUE", help="what tasks are told that make "
         f"their own data, such as RULER's: {KEY_VALUES}")  # fmt: skip
    _add(parser, "--system-instruction", metavar="TEXT", help="a text before each question, with the space "
         "between them")  # fmt: skip
    _add(parser, "--apply-chat-template", nargs="?", const="", metavar="NAME", help="refused: a checkpoint has none")
    _add(parser, "--seed", type=_seeds, default=(), metavar="N", help="of what is drawn: one number, or those of "
         "python, numpy, torch and examples (0,1234,1234,1234)")  # fmt: skip


def _add_answers(parser: argparse.ArgumentParser) -> None:
    """Options of lm-eval that say what becomes of answers."""
    _add(parser, "--gen-kwargs", action="append", default=[], metavar="KEY=VALUE", help="how text is generated, "
         f"whatever tasks say, such as max_gen_toks=64: {KEY_VALUES}")  # fmt: skip
    _add(parser, "--log-samples", action="store_true", help="write every question with its answer, too")
    _add(parser, "--predict-only", action="store_true", help="write questions and answers, and compute no metrics")
    _add(parser, "--confirm-run-unsafe-code", action="store_true", help="let tasks such as humaneval run the code that "
         "the model writes, with your rights")  # fmt: skip


def _add(parser: argparse._ActionsContainer, name: str, **options: Any) -> None:
    """An option that may be written as lm-eval does, too: `--num_fewshot`."""
    parser.add_argument(name, **options)
    twin = f"--{name[2:].replace('-', '_')}"
    if twin != name:
        parser.add_argument(twin, **{**options, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS})


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def _limit(text: str) -> float:
    number = float(text)
    if not (0 < number < 1 or (number >= 1 and number.is_integer())):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, or a share below 1, not {text!r}")
    return number


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(_count(part) for part in text.split(","))
    if len(seeds) not in (1, 4):
        raise argparse.ArgumentTypeError(f"must be one number or four, not {text!r}")
    return seeds * (4 // len(seeds))


def _harness(options: argparse.Namespace) -> None:
    from megatron_mep.harness.harness import check_installed, harness

    check_installed()
    length = MaxLength(options.max_length, options.truncate)
    harness(options.checkpoint, _tasks(options), length, options.overrides, options.to)


def _tasks(options: argparse.Namespace) -> Tasks:
    no_chat_template(options.apply_chat_template)
    return Tasks(
        names=tuple(options.tasks.split(",")),
        include_path=options.include_path,
        num_fewshot=options.num_fewshot,
        limit=options.limit,
        samples=None if options.samples is None else samples(options.samples),
        log_samples=options.log_samples,
        predict_only=options.predict_only,
        system_instruction=options.system_instruction,
        gen_kwargs=settings("--gen-kwargs", options.gen_kwargs),
        metadata=settings("--metadata", options.metadata),
        seeds=Seeds(*options.seed),
        confirm_run_unsafe_code=options.confirm_run_unsafe_code,
    )
