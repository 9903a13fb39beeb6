"""`mep tricks`: the length tricks, listed and explained."""

import argparse

from megatron_mep.commands.arguments import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "tricks", _tricks, "list the length tricks of evaluate and generate, or explain one")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the trick to explain")


def _tricks(options: argparse.Namespace) -> None:
    from megatron_mep.extrapolation.catalogue import explained, listed

    print(explained(options.name) if options.name else listed())  # noqa: T201
