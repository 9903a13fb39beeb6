"""The `mep` command: verbs, each in a file of `commands`, and what they end with.

What a verb needs is imported when it is called, so that help needs no torch.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from megatron_mep.commands import (
    analyze,
    check,
    checkpoint,
    doctor,
    encodings,
    evaluate,
    export,
    generate,
    harness,
    launch,
    plan,
    prepare,
    probe,
    report,
    status,
    study,
    train,
    tricks,
)
from megatron_mep.config.errors import UserError
from megatron_mep.standard_output import READER_LEFT, reader_left

VERBS = (
    doctor,
    check,
    plan,
    prepare,
    train,
    launch,
    status,
    checkpoint,
    evaluate,
    generate,
    probe,
    harness,
    analyze,
    report,
    study,
    export,
    encodings,
    tricks,
)
"""In the order of help: that of a run's life."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb; 2 where the user can put right what was wrong, 3 where a run's numbers are no longer finite."""
    options = parsed(arguments)
    # a run file may name a class of the user's own; `python -m` looks for it in the current folder, and so does `mep`
    sys.path.insert(0, os.getcwd())
    # Megatron-core says that it runs without TransformerEngine and Apex, as we mean it to, and torch that the
    # sharded tensors which Megatron-core stores, and the gathers that it calls, are going out of use
    warnings.filterwarnings("ignore", module=r"megatron\.core\.|torch\.distributed\.(checkpoint\.|c10d_logger)")
    try:
        exit_code: int = options.verb(options) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        # those of other pipes and sockets are ours to mend
        if not reader_left():
            raise
        return READER_LEFT
    except UserError as error:
        rank = os.environ.get("RANK", "0")
        where = f"[rank {rank}] " if rank != "0" else ""
        for mistake in error.mistakes:
            print(f"{where}mep: {mistake}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return exit_code


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; overrides may stand anywhere, which argparse allows in front of other options alone."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    strange = [word for word in rest if word.startswith("-") or "=" not in word or not hasattr(options, "overrides")]
    if strange:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    if rest:
        options.overrides += rest
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mep",
        description="Pretrain language models with relative positional encodings under Megatron-core and DeepSpeed, "
        "and measure them far beyond their training length.",
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_to(verbs)
    return parser


if __name__ == "__main__":
    sys.exit(main())
