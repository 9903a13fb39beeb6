"""`mep study`: encodings are compared over seeds, sizes and training lengths, from one file."""

import argparse
import sys
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb
from megatron_mep.config.errors import Mistake, UserError
from megatron_mep.plan.accelerators import ACCELERATORS

OVERRIDES = "key.sub=value ...: overrides of the study file, for example seeds=[1,2] run.training.steps=100"


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "study", _study, "train and evaluate encodings over seeds and sizes, and compare them")
    parser.add_argument("study", type=Path, metavar="STUDY", help="a study file, see configs/studies/")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="list the arms and what each would take, do nothing")
    what.add_argument("--summary", action="store_true", help="summarize what is there, train and evaluate nothing")
    what.add_argument("--arm", type=int, metavar="N", help="one arm alone, by its number in --dry-run")
    parser.add_argument("--stage", choices=("train", "evaluate"),
                        help="with --arm: this process is one of the arm's ranks, as its launcher says")  # fmt: skip
    parser.add_argument("--folder", action="store_true", help="with --arm: print the arm's folder, do nothing")
    parser.add_argument("--device", choices=ACCELERATORS, default="cpu", help="with --dry-run: what ranks run on (cpu)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def _study(options: argparse.Namespace) -> int:
    for name in ("stage", "folder"):
        if getattr(options, name) and options.arm is None:
            raise UserError(Mistake(f"--{name}", None, "is of one arm", "add --arm N, or leave it out"))
    if options.stage:
        return _train(options) if options.stage == "train" else _evaluate(options)
    return _whole(options)


def _whole(options: argparse.Namespace) -> int:
    from megatron_mep.launcher.local import run_locally
    from megatron_mep.studies.arms import load_study
    from megatron_mep.studies.costs import listing
    from megatron_mep.study import arm_of, run_arm, run_study, summarize

    study = load_study(options.study, options.overrides)

    def start(arguments: list[str]) -> int:
        # what ranks print must not come before what is said of them
        sys.stdout.flush()
        return run_locally(study.config.ranks, arguments)

    if options.dry_run:
        print(listing(study, options.device))  # noqa: T201
    elif options.folder:
        print(arm_of(study, options.arm).run.folder)  # noqa: T201
    elif options.summary:
        summarize(study)
        print(study.folder / "summary.md")  # noqa: T201
    elif options.arm is not None:
        return run_arm(study, arm_of(study, options.arm), start, print)
    else:
        return run_study(study, start, print)
    return 0


def _train(options: argparse.Namespace) -> int:
    from megatron_mep.training.signals import Signals

    # from here on, since what is imported takes its time
    with Signals() as signals:
        from megatron_mep.pretrain import pretrain
        from megatron_mep.studies.arms import load_study
        from megatron_mep.study import arm_of

        pretrain(arm_of(load_study(options.study, options.overrides), options.arm).run, signals)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from megatron_mep.evaluate import evaluate
    from megatron_mep.studies.arms import load_study
    from megatron_mep.study import arm_of, evaluation_of

    arm = arm_of(load_study(options.study, options.overrides), options.arm)
    evaluate(arm.run.folder, [evaluation_of(arm)], arm.rows_file)
    return 0
