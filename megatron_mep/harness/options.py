"""Options of lm-evaluation-harness as its own command line reads them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_mep.config.errors import Mistake
from megatron_mep.harness.length import HarnessError

EXAMPLE = """for example '{"niah_single_1": [0, 1, 2]}'"""


def settings(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Those of a JSON object, or of `key=value,key=value`; the last one of a key holds."""
    # the harness' own reader, so that a value means here what it means there
    from lm_eval._cli.utils import key_val_to_dict

    found: dict[str, Any] = {}
    for text in texts:
        try:
            found |= _object(text) if text.lstrip().startswith("{") else key_val_to_dict(text)
        except ValueError as error:
            rule = f"must be key=value,key=value or a JSON object ({error})"
            raise HarnessError(Mistake(option, text, rule, "correct it")) from None
    return found


def samples(text: str) -> dict[str, list[int]]:
    """Which questions of which task are asked: a JSON object, or the path of a file that holds one."""
    try:
        inside = text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8")
        wanted = _object(inside)
    except (OSError, ValueError) as error:
        rule = f"must be a JSON object of tasks and the numbers of their questions, or a file of one ({error})"
        raise HarnessError(Mistake("--samples", text, rule, EXAMPLE)) from None
    for task, numbers in wanted.items():
        if not isinstance(numbers, list) or not numbers or any(type(one) is not int or one < 0 for one in numbers):
            rule = f"must be a list of the numbers of questions, the first of which is 0, not {json.dumps(numbers)}"
            raise HarnessError(Mistake("--samples", task, rule, EXAMPLE))
    # the harness gives each question the number at its place, and reads them in their order
    return {task: sorted(set(numbers)) for task, numbers in wanted.items()}


def no_chat_template(name: str | None) -> None:
    """Refuses a chat template, which the harness asks for by name or by its option alone."""
    if name is not None:
        rule = "cannot be used: a checkpoint and its tokenizer have no chat template"
        raise HarnessError(Mistake("--apply-chat-template", name or None, rule, "leave it out"))


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found
