"""`mep launch`: a run becomes a job on a cluster, or ranks on this machine."""

import argparse
import shlex
import sys
from datetime import datetime

from megatron_mep.commands.arguments import Verbs, add_run, add_verb, positive
from megatron_mep.config.errors import Mistake, UserError
from megatron_mep.launcher.clock import seconds_of

OF_A_CLUSTER = ("nodes", "launcher", "time")


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "launch", _launch, "train on a cluster by SLURM, or on several ranks of this machine")
    add_run(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--cluster", metavar="PROFILE", help="a profile of launch/clusters, by name or path")
    where.add_argument("--local", type=positive, metavar="N", help="N ranks here, through the deepspeed launcher")
    parser.add_argument("--nodes", type=positive, metavar="N", help="nodes (the fewest that hold the model)")
    parser.add_argument(
        "--launcher", choices=("srun", "deepspeed", "torchrun"), help="who starts ranks (the profile's)"
    )
    parser.add_argument(
        "--time", type=_time, metavar="T", help="how long the job may last, as 24:00:00 (the profile's time_limit)"
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, print what would be done, do nothing")


def _launch(options: argparse.Namespace) -> int:
    return _launch_here(options) if options.local else _launch_job(options)


def _launch_job(options: argparse.Namespace) -> int:
    from megatron_mep.launch import Wish, prepare

    command = shlex.join(["mep", *sys.argv[1:]])
    wish = Wish(options.run, options.overrides, options.cluster, options.nodes, options.launcher, options.time, command)
    prepared = prepare(wish, submits=not options.dry_run, now=datetime.now())
    for warning in prepared.warnings:
        print(f"mep: warning: {warning}", file=sys.stderr)  # noqa: T201
    print(prepared.script if options.dry_run else prepared.submit())  # noqa: T201
    return 0


def _launch_here(options: argparse.Namespace) -> int:
    from megatron_mep.launch import check_local
    from megatron_mep.launcher.local import local_command, train_locally

    stated = [name for name in OF_A_CLUSTER if getattr(options, name) is not None]
    if stated:
        rule, remedy = "is of a cluster", "leave it out, or give --cluster in the place of --local"
        raise UserError(Mistake(f"--{name}", getattr(options, name), rule, remedy) for name in stated)
    check_local(options.run, options.overrides, options.local)
    run = str(options.run)
    if options.dry_run:
        print(shlex.join(local_command(options.local, run, options.overrides)))  # noqa: T201
        return 0
    return train_locally(options.local, run, options.overrides)


def _time(text: str) -> str:
    try:
        seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
