"""`mep report`: length curves on one page."""

import argparse
import shlex
import sys
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "report", _report, "draw length curves of result files or runs on one page")
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="result files, or folders of runs")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder of the page, figures and tables")


def _report(options: argparse.Namespace) -> None:
    from megatron_mep.reporting.report import PAGE, TABLE, write_report

    write_report(options.results, options.to, command=shlex.join(["mep", *sys.argv[1:]]))
    print((options.to / TABLE).read_text(encoding="utf-8"))  # noqa: T201
    print(f"page: {(options.to / PAGE).resolve().as_uri()}")  # noqa: T201
