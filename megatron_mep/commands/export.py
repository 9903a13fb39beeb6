"""`mep export`: a checkpoint as a folder that transformers loads."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import OVERRIDES, Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "export", _export, "write a checkpoint as a Hugging Face folder, proved to compute alike")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="a folder that is not there yet")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def _export(options: argparse.Namespace) -> None:
    from megatron_mep.export.export import export

    print(export(options.checkpoint, options.to, options.overrides))  # noqa: T201
