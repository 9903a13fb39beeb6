"""`mep evaluate`: the perplexity of a checkpoint at many lengths."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import OVERRIDES, Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "evaluate", _evaluate, "measure the perplexity of a checkpoint at many lengths")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    parser.add_argument("--lengths", metavar="L,L,...", help="the same as evaluation.lengths=[L,L,...]")
    parser.add_argument("--to", type=Path, metavar="FILE", help="rows go there, not into the run's evaluation folder")
    parser.add_argument("--again", action="store_true", help="measure what the file of rows has already, too")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def _evaluate(options: argparse.Namespace) -> None:
    from megatron_mep.evaluate import evaluate

    lengths = [f"evaluation.lengths=[{options.lengths}]"] if options.lengths else []
    evaluate(options.checkpoint, [*options.overrides, *lengths], options.to, options.again)
