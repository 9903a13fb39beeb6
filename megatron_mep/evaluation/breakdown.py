"""What a result row says of the parts of its scored tokens: of each document, and of each position in a window."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_mep.evaluation.bootstrap import interval
from megatron_mep.evaluation.perplexity import Scored
from megatron_mep.evaluation.plan import Plan
from megatron_mep.evaluation.rows import perplexity_of

CONFIDENCE = 0.95


def by_document(scored: Scored, document_ends: NDArray[np.integer] | None) -> dict[str, Any]:
    """The fields of a row that speak of documents; none where no end of documents is known.

    A document ends with its end-of-document token. What follows the last of them is a document, too.
    """
    if document_ends is None:
        return {}
    _, of_document = np.unique(np.searchsorted(document_ends, scored.positions), return_inverse=True)
    tokens = np.bincount(of_document)
    told: dict[str, Any] = {"document_tokens": tuple(tokens.tolist())}
    if np.all(np.isfinite(scored.nll)):
        nll = np.bincount(of_document, weights=scored.nll).astype(np.float64)
        told["document_nll"] = tuple(nll.tolist())
        if len(tokens) > 1:
            low, high = interval(nll[None], tokens, CONFIDENCE)
            told |= {"perplexity_low": perplexity_of(low), "perplexity_high": perplexity_of(high)}
    return told


def by_position(plan: Plan, scored: Scored) -> dict[str, Any]:
    """The fields of a row that speak of positions in a window; none where its plan does not."""
    if plan.position_ends is None:
        return {}
    of_range, bins = np.searchsorted(plan.position_ends, plan.contexts), len(plan.position_ends)
    # a loss that is not finite spoils its own range alone
    sums, counts = np.bincount(of_range, weights=scored.nll, minlength=bins), np.bincount(of_range, minlength=bins)
    means = [float(mean) if np.isfinite(mean) else None for mean in sums / counts]
    return {"position_ends": plan.position_ends, "position_nll": tuple(means)}
