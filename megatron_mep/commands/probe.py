"""`mep probe`: questions with known answers, by length."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb

OVERRIDES = (
    "key.sub=value ...: overrides of the run file, for example probes.retrieval.lengths=[512,4096] or "
    "probes.formal.tasks=[{name: copy}]"
)


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "probe", _probe, "ask a checkpoint for what stands in long texts, and for exercises")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    parser.add_argument("--suite", type=Path, metavar="FILE", help="a section probes, over that of the run; see "
                        "configs/tasks")  # fmt: skip
    parser.add_argument("--to", type=Path, metavar="FILE", help="rows go there, not into the run's folder of probes")
    parser.add_argument("--again", action="store_true", help="ask what the file of rows has the answers to, too")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def _probe(options: argparse.Namespace) -> None:
    from megatron_mep.probe import probe

    probe(options.checkpoint, options.overrides, options.suite, options.to, options.again)
