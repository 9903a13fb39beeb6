"""`mep encodings`: the positional encodings, listed, explained and shown."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb, positive
from megatron_mep.config.errors import Mistake, UserError


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "encodings", _encodings, "list the positional encodings, or explain one")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the encoding to explain, or module:Class")
    parser.add_argument("options", nargs="*", metavar="key=value", help="its options, for --matrix and --plot")
    parser.add_argument("--matrix", action="store_true", help="print what it does to the score of every pair")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw that by distance: FILE.png or FILE.svg")
    parser.add_argument("--heads", type=positive, metavar="H", help="number of heads (8)")
    parser.add_argument("--length", type=positive, metavar="L", help="number of tokens (8, or 2048 for --plot)")


def _encodings(options: argparse.Namespace) -> None:
    from megatron_mep.catalogue import explained, listed, matrix, stated

    shows = options.matrix or options.plot
    heads = options.heads or 8
    for option in ("heads", "length"):
        if getattr(options, option) and not shows:
            rule = "is of what --matrix and --plot show"
            raise UserError(Mistake(f"--{option}", getattr(options, option), rule, "add one of them, or leave it out"))
    if shows or options.options:
        encoding = stated(options.name or "", options.options)
    if options.matrix:
        print(matrix(encoding, heads, options.length or 8))  # noqa: T201
    if options.plot:
        from megatron_mep.encoding_figure import draw

        print(draw(encoding, heads, options.length or 2048, options.plot))  # noqa: T201
    if not shows:
        print(explained(options.name) if options.name else listed())  # noqa: T201
