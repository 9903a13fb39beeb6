"""`mep generate`: prompts, continued by a checkpoint."""

import argparse
from pathlib import Path

from megatron_mep.commands.arguments import Verbs, add_verb

OVERRIDES = (
    "key.sub=value ...: overrides of the run file; the section generation has max_new_tokens, temperature (0: always "
    "the likeliest token), top_k, top_p, seed, prefill_chunk and stop_at_end, for example generation.temperature=0"
)


def add_to(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "generate", _generate, "continue prompts with a checkpoint, at any length")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or one of its step_...")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="a text; may be repeated")
    parser.add_argument("--prompt-file", action="append", default=[], type=Path, metavar="FILE",
                        help="a file that is one prompt, or - for standard input; may be repeated")  # fmt: skip
    parser.add_argument("--to", type=Path, metavar="FILE", help="add rows there too, one JSON line for each prompt")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def _generate(options: argparse.Namespace) -> None:
    from megatron_mep.generate import generate

    generate(options.checkpoint, options.prompt, options.prompt_file, options.overrides, options.to)
