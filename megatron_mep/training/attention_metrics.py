"""What attention left out in training, as metrics."""

from megatron_mep.attention.work import Work
from megatron_mep.training.metrics import Metrics


def attention_metrics(work: Work) -> Metrics:
    """The share of causal scores that was computed, and the most that any query's softmax may have lost.

    Nothing where all is computed. Gradients recomputed from activations count their forward pass again.
    """
    return {"attention_kept": work.kept, "attention_dropped": work.dropped} if work.causal_pairs else {}
