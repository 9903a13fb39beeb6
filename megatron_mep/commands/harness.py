"""`mep harness`: the tasks of lm-evaluation-harness, put to a checkpoint."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb, positive

OVERRIDES = (
    "key.sub=value ...: overrides of the run file, for example parallel.tensor=2, generation.prefill_chunk=4096 or "
    "evaluation.batch_tokens=65536 (tokens in one forward pass)"
)


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
    parser.add_argument("--include-path", type=Path, metavar="DIR", help="a folder of tasks of your own")
    parser.add_argument("--num-fewshot", type=int, metavar="N", help="examples before each question")
    parser.add_argument("--limit", type=float, metavar="N", help="questions of each task: a number, or a share below 1")
    parser.add_argument("--log-samples", action="store_true", help="write every question with its answer, too")
    parser.add_argument("--to", type=Path, metavar="DIR", help="results go there, not into the run's folder harness")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def _harness(options: argparse.Namespace) -> None:
    from megatron_mep.harness.harness import Tasks, harness
    from megatron_mep.harness.length import MaxLength

    tasks = Tasks(
        names=tuple(options.tasks.split(",")),
        include_path=options.include_path,
        num_fewshot=options.num_fewshot,
        limit=options.limit,
        log_samples=options.log_samples,
    )
    harness(options.checkpoint, tasks, MaxLength(options.max_length, options.truncate), options.overrides, options.to)
