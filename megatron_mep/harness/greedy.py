"""How tasks say that text is generated, which is greedily here."""

from typing import Any

from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from megatron_mep.config.errors import Mistake
from megatron_mep.harness.length import HarnessError
from megatron_mep.harness.writing import Until

GREEDY = {"do_sample", "temperature", "top_p", "top_k"}
"""What tasks say of how tokens are drawn; greedy generation draws none."""


def until_of(options: dict[str, Any]) -> Until:
    """Where a task ends what is generated; a `HarnessError` where it asks for more than greedy generation."""
    try:
        stated = dict(normalize_gen_kwargs(options))
        texts = tuple(end for end in handle_stop_sequences(stated.pop("until"), eos=None) if end)
    except (TypeError, ValueError) as error:
        rule = f"says {options} of how text is generated, which cannot be read ({error})"
        raise HarnessError(Mistake("--tasks", None, rule, "correct the task, or --gen-kwargs")) from None
    max_tokens = stated.pop("max_gen_toks")
    if max_tokens < 1:
        rule = f"leaves no room for an answer: max_gen_toks is {max_tokens}"
        raise HarnessError(Mistake("--tasks", None, rule, "correct the task, or --gen-kwargs"))
    beyond = sorted(set(stated) - GREEDY) or (["do_sample"] if stated["do_sample"] else [])
    if beyond:
        rule = f"says {', '.join(beyond)} of how text is generated, which is greedy here"
        remedy = "set do_sample to false in the task or by --gen-kwargs do_sample=false, and nothing else"
        raise HarnessError(Mistake("--tasks", None, rule, remedy))
    return Until(texts, max_tokens)
