"""`mep plan`: memory, traffic, operations and time of a run, worked out ahead of it."""

import argparse
import json

from megatron_mep.commands.arguments import Verbs, add_run, add_verb, fraction, positive
from megatron_mep.plan.accelerators import ACCELERATORS, PEAK_FRACTION


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "plan", _plan, "work out memory, traffic, operations and time of a run on a layout")
    add_run(parser)
    parser.add_argument("--world-size", type=positive, metavar="N", help="ranks (the fewest that the layout allows)")
    parser.add_argument("--device", choices=ACCELERATORS, default="h100", help="what the ranks run on (h100)")
    parser.add_argument("--peak-fraction", type=fraction, default=PEAK_FRACTION, metavar="F",
                        help=f"share of the device's peak that is taken to be reached ({PEAK_FRACTION})")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print it for a program, in bytes and seconds")


def _plan(options: argparse.Namespace) -> None:
    from megatron_mep.plan.plan import plan_of
    from megatron_mep.plan.table import as_json, table
    from megatron_mep.run import load_run

    run = load_run(options.run, options.overrides)
    plan = plan_of(run, options.world_size, options.device, options.peak_fraction)
    print(json.dumps(as_json(plan), indent=2) if options.json else table(plan))  # noqa: T201
