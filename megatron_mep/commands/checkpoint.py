"""`mep checkpoint`: whether a checkpoint is whole, and what it holds."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb


def add_to(verbs: Verbs) -> None:
    """Adds the verb with its two actions."""
    parser = add_verb(verbs, "checkpoint", None, "verify a checkpoint, or say what it holds")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    verify = add_verb(actions, "verify", _verify, "compare every file with the size and hash it was written with")
    inspect = add_verb(actions, "inspect", _inspect, "say what a checkpoint holds, without loading it")
    for action in (verify, inspect):
        action.add_argument(
            "checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_..."
        )
    inspect.add_argument("--json", action="store_true", help="for a program")


def _verify(options: argparse.Namespace) -> None:
    from megatron_mep.checkpoint.files import locate, verify
    from megatron_mep.checkpoint.manifest import listed

    folder = locate(options.checkpoint)
    verify(folder)
    files = listed(folder) or {}
    num_bytes = sum(size for size, _ in files.values())
    print(f"{folder} is whole: {len(files)} files, {num_bytes:,} bytes as they were written")  # noqa: T201


def _inspect(options: argparse.Namespace) -> None:
    from megatron_mep.checkpoint.contents import contents_of
    from megatron_mep.checkpoint.files import find

    contents = contents_of(find(options.checkpoint))
    print(contents.json() if options.json else contents)  # noqa: T201
