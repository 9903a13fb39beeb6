"""The `mep` command: its verbs call functions that are imported only then, so that help needs no torch."""

import argparse
import json
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from megatron_mep.config.errors import Mistake, UserError
from megatron_mep.plan.accelerators import ACCELERATORS, PEAK_FRACTION
from megatron_mep.standard_output import READER_LEFT, reader_left

OVERRIDES = "key.sub=value ...: overrides of the run file, for example training.steps=100 model.encoding.name=alibi"
GENERATION = (
    "key.sub=value ...: overrides of the run file; the section generation has max_new_tokens, temperature (0: always "
    "the likeliest token), top_k, top_p, seed, prefill_chunk and stop_at_end, for example generation.temperature=0"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb; 2 where the user can put right what was wrong, 3 where a run's numbers are no longer finite."""
    options = parsed(arguments)
    # a run file may name a class of the user's own; `python -m` looks for it in the current folder, and so does `mep`
    sys.path.insert(0, os.getcwd())
    # Megatron-core says that it runs without TransformerEngine and Apex, as we mean it to, and torch that the
    # sharded tensors which Megatron-core stores, and the gathers that it calls, are going out of use
    warnings.filterwarnings("ignore", module=r"megatron\.core\.|torch\.distributed\.(checkpoint\.|c10d_logger)")
    try:
        options.verb(options)
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
    return 0


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

    check = _verb(verbs, "check", _check, "say what a run file comes to, and every mistake in it")
    _add_run(check)
    check.add_argument("--world-size", type=int, metavar="N", help="number of ranks to check the layout for")

    plan = _verb(verbs, "plan", _plan, "work out memory, traffic, operations and time of a run on a layout")
    _add_run(plan)
    plan.add_argument("--world-size", type=_positive, metavar="N", help="ranks (the fewest that the layout allows)")
    plan.add_argument("--device", choices=ACCELERATORS, default="h100", help="what the ranks run on (h100)")
    plan.add_argument("--peak-fraction", type=_fraction, default=PEAK_FRACTION, metavar="F",
                      help=f"share of the device's peak that is taken to be reached ({PEAK_FRACTION})")  # fmt: skip
    plan.add_argument("--json", action="store_true", help="print it for a program, in bytes and seconds")

    prepare = _verb(verbs, "prepare", _prepare, "make the tokenizer and the tokenized corpus of a run")
    _add_run(prepare)
    prepare.add_argument("--force", action="store_true", help="replace a corpus made from other settings")

    _add_run(_verb(verbs, "train", _train, "pretrain, from the latest checkpoint where there is one"))

    checkpoint = _verb(verbs, "checkpoint", None, "verify a checkpoint, or say what it holds")
    actions = checkpoint.add_subparsers(title="actions", required=True, metavar="ACTION")
    verify = _verb(actions, "verify", _verify, "compare every file with the size and hash it was written with")
    verify.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    inspect = _verb(actions, "inspect", _inspect, "say what a checkpoint holds, without loading it")
    inspect.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    inspect.add_argument("--json", action="store_true", help="for a program")

    evaluate = _verb(verbs, "evaluate", _evaluate, "measure the perplexity of a checkpoint at many lengths")
    evaluate.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    evaluate.add_argument("--lengths", metavar="L,L,...", help="the same as evaluation.lengths=[L,L,...]")
    evaluate.add_argument("--to", type=Path, metavar="FILE", help="rows go there, not into the run's evaluation folder")
    evaluate.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)

    generate = _verb(verbs, "generate", _generate, "continue prompts with a checkpoint, at any length")
    generate.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    generate.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="a text; may be repeated")
    generate.add_argument("--prompt-file", action="append", default=[], type=Path, metavar="FILE",
                          help="a file that is one prompt, or - for standard input; may be repeated")  # fmt: skip
    generate.add_argument("--to", type=Path, metavar="FILE", help="add rows there too, one JSON line for each prompt")
    generate.add_argument("overrides", nargs="*", metavar="key=value", help=GENERATION)

    report = _verb(verbs, "report", _report, "draw length curves of result files or runs on one page")
    report.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="result files, or folders of runs")
    report.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder of the page, figures and tables")

    encodings = _verb(verbs, "encodings", _encodings, "list the positional encodings, or explain one")
    encodings.add_argument("name", nargs="?", metavar="NAME", help="the encoding to explain, or module:Class")
    encodings.add_argument("options", nargs="*", metavar="key=value", help="its options, for --matrix and --plot")
    encodings.add_argument("--matrix", action="store_true", help="print what it does to the score of every pair")
    encodings.add_argument("--plot", type=Path, metavar="FILE", help="draw that by distance: FILE.png or FILE.svg")
    encodings.add_argument("--heads", type=_positive, metavar="H", help="number of heads (8)")
    encodings.add_argument("--length", type=_positive, metavar="L", help="number of tokens (8, or 2048 for --plot)")

    tricks = _verb(verbs, "tricks", _tricks, "list the length tricks of evaluate and generate, or explain one")
    tricks.add_argument("name", nargs="?", metavar="NAME", help="the trick to explain")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _fraction(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {number:g}")
    return number


def _verb(verbs, name: str, function, summary: str) -> argparse.ArgumentParser:  # type: ignore[no-untyped-def]
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:])
    parser.set_defaults(verb=function)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run file, see configs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def _check(options: argparse.Namespace) -> None:
    from megatron_mep.check import describe
    from megatron_mep.run import load_run

    print(describe(load_run(options.run, options.overrides), options.world_size))  # noqa: T201


def _plan(options: argparse.Namespace) -> None:
    from megatron_mep.plan.plan import plan_of
    from megatron_mep.plan.table import as_json, table
    from megatron_mep.run import load_run

    run = load_run(options.run, options.overrides)
    plan = plan_of(run, options.world_size, options.device, options.peak_fraction)
    print(json.dumps(as_json(plan), indent=2) if options.json else table(plan))  # noqa: T201


def _prepare(options: argparse.Namespace) -> None:
    from megatron_mep.data.corpus import prepare
    from megatron_mep.run import load_run

    run = load_run(options.run, options.overrides)
    prepare(run.data, print, force=options.force)


def _train(options: argparse.Namespace) -> None:
    from megatron_mep.pretrain import pretrain
    from megatron_mep.run import load_run

    pretrain(load_run(options.run, options.overrides))


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


def _evaluate(options: argparse.Namespace) -> None:
    from megatron_mep.evaluate import evaluate

    lengths = [f"evaluation.lengths=[{options.lengths}]"] if options.lengths else []
    evaluate(options.checkpoint, [*options.overrides, *lengths], options.to)


def _generate(options: argparse.Namespace) -> None:
    from megatron_mep.generate import generate

    generate(options.checkpoint, options.prompt, options.prompt_file, options.overrides, options.to)


def _report(options: argparse.Namespace) -> None:
    from megatron_mep.reporting.report import PAGE, TABLE, write_report

    write_report(options.results, options.to, command=shlex.join(["mep", *sys.argv[1:]]))
    print((options.to / TABLE).read_text(encoding="utf-8"))  # noqa: T201
    print(f"page: {(options.to / PAGE).resolve().as_uri()}")  # noqa: T201


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


def _tricks(options: argparse.Namespace) -> None:
    from megatron_mep.extrapolation.catalogue import explained, listed

    print(explained(options.name) if options.name else listed())  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
