"""`mep prepare`: text becomes a tokenizer and a tokenized corpus."""

import argparse

from megatron_mep.commands.arguments import Verbs, add_run, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "prepare", _prepare, "make the tokenizer and the tokenized corpus of a run")
    add_run(parser)
    parser.add_argument("--force", action="store_true", help="replace a corpus made from other settings")


def _prepare(options: argparse.Namespace) -> None:
    from megatron_mep.data.corpus import prepare
    from megatron_mep.run import load_run

    run = load_run(options.run, options.overrides)
    prepare(run.data, print, force=options.force)
