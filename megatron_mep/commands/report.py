"""`mep report`: what was measured, on one page to look into."""

import argparse
import shlex
import sys
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "report", _report, "draw what was measured of runs on one page to look into")
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="result files, folders of runs or of studies"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder of the page, figures and tables")


def _report(options: argparse.Namespace) -> None:
    from megatron_mep.report import report
    from megatron_mep.reporting.report import PAGE, TABLE

    report(options.results, options.to, command=shlex.join(["mep", *sys.argv[1:]]))
    print((options.to / TABLE).read_text(encoding="utf-8"))  # noqa: T201
    print(f"page: {(options.to / PAGE).resolve().as_uri()}")  # noqa: T201
