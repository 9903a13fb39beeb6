"""`mep check`: what a run file comes to, or every mistake in it."""

import argparse

from megatron_mep.commands.arguments import Verbs, add_run, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "check", _check, "say what a run file comes to, and every mistake in it")
    add_run(parser)
    parser.add_argument("--world-size", type=int, metavar="N", help="number of ranks to check the layout for")


def _check(options: argparse.Namespace) -> None:
    from megatron_mep.check import describe
    from megatron_mep.run import load_run

    print(describe(load_run(options.run, options.overrides), options.world_size))  # noqa: T201
