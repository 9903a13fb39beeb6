"""A program of its own: loads an exported folder as a user would, and compares it with what it must compute.

    python verify.py FOLDER REFERENCE RESULT

It imports nothing of this package, and says so if the exported files do.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ABSENT = ("megatron_mep", "megatron", "deepspeed")
"""What an exported model must do without."""
CACHE_NAMES = ("past_key_values", "cache")


@torch.no_grad()
def differences(model: Any, cases: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """The largest difference of any logit, for each way of computing them."""
    for case in cases:
        match case:
            case {"rows": rows, "steps": steps, "logits": expected}:
                yield case["name"], _padded(model, rows, steps, expected)
            case {"steps": steps, "tokens": tokens, "logits": expected}:
                for name in CACHE_NAMES:
                    yield f"{case['name']}_by_{name}", _largest(_stepwise(model, tokens, steps, name), expected)
            case {"tokens": tokens, "logits": expected}:
                yield case["name"], _largest(model(tokens.to(model.device)).logits, expected)


def _padded(model: Any, rows: list[Tensor], steps: list[int], expected: list[Tensor]) -> float:
    longest = sum(steps)
    tokens, mask = (torch.zeros(len(rows), longest, dtype=torch.long) for _ in range(2))
    for index, row in enumerate(rows):
        tokens[index, longest - row.size(1) :], mask[index, longest - row.size(1) :] = row[0], 1
    found = _stepwise(model, tokens, steps, CACHE_NAMES[0], mask)
    pairs = zip(found, rows, expected, strict=True)
    return max(_largest(logits[-row.size(1) :], alone[0]) for logits, row, alone in pairs)


def _stepwise(model: Any, tokens: Tensor, steps: list[int], name: str, mask: Tensor | None = None) -> Tensor:
    cache, parts, read = None, [], 0
    for part in tokens.split(steps, dim=1):
        read += part.size(1)
        options = {} if mask is None else {"attention_mask": mask[:, :read].to(model.device)}
        output = model(part.to(model.device), use_cache=True, **{name: cache}, **options)
        cache = output.cache if hasattr(output, "cache") else output.past_key_values
        parts.append(output.logits)
    return torch.cat(parts, dim=1)


def _largest(found: Tensor, expected: Tensor) -> float:
    difference = (found.cpu() - expected).abs().max().item()
    # a number that is none would pass every comparison
    return difference if difference == difference else float("inf")


def _other_texts(tokenizer: Any, cases: list[dict[str, Any]]) -> list[str]:
    return [
        case["text"]
        for case in cases
        if tokenizer(case["text"])["input_ids"] != case["tokens"]
        or tokenizer.decode(case["tokens"], skip_special_tokens=True) != case["decoded"]
    ]


def main(folder: str, reference: str, result: str) -> None:
    """Writes what was found."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cases = torch.load(reference)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).to(device).eval()
    found = {
        "differences": dict(differences(model, cases["model"])),
        "other_texts": _other_texts(AutoTokenizer.from_pretrained(folder, trust_remote_code=True), cases["tokenizer"]),
        "imported": [name for name in ABSENT if name in sys.modules],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
