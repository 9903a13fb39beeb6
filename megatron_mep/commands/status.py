"""`mep status`: what became of a run, and what comes next."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "status", _status, "say how far a run is, why its jobs ended, and what comes next")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="a run's folder, for example runs/my_run")
    parser.add_argument("--json", action="store_true", help="for a program")


def _status(options: argparse.Namespace) -> None:
    from megatron_mep.launcher.status import status_of

    status = status_of(options.folder)
    print(status.json() if options.json else status)  # noqa: T201
