"""`mep doctor`: whether runs would work on this machine."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "doctor", _doctor, "look at software, machine and attention, and say what to mend")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are written (runs)")
    parser.add_argument("--json", action="store_true", help="print it for a program")


def _doctor(options: argparse.Namespace) -> int:
    from megatron_mep.doctor.report import doctor

    return doctor(options.json, options.runs)
