"""`mep analyze`: what a checkpoint uses of the tokens before, by length."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import OVERRIDES, Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    summary = "measure how far back a checkpoint looks: receptive field, and attention by distance and head"
    parser = add_verb(verbs, "analyze", _analyze, summary)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    parser.add_argument("--lengths", metavar="L,L,...", help="the same as analysis.lengths=[L,L,...]")
    parser.add_argument("--to", type=Path, metavar="FILE", help="rows go there, not into the run's analysis folder")
    parser.add_argument("--again", action="store_true", help="analyze lengths that the file of rows has, too")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def _analyze(options: argparse.Namespace) -> None:
    from megatron_mep.analyze import analyze

    lengths = [f"analysis.lengths=[{options.lengths}]"] if options.lengths else []
    analyze(options.checkpoint, [*options.overrides, *lengths], options.to, options.again)
