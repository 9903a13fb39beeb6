"""What a forward pass keeps for the backward pass, from the operations of our layers and what each saves."""

from dataclasses import dataclass

from megatron_mep.attention.backend import Backend
from megatron_mep.plan.attention import WIDE, Attention
from megatron_mep.plan.share import Share

BYTES_OF_LABELS = 25
"""A token and its label in int64, its loss and a mask."""


@dataclass(frozen=True)
class Activations:
    """Bytes of one micro-batch on one rank."""

    kept: int
    """All that stays until the backward pass comes to it."""
    again: int
    """What one layer computes again in the backward pass, at its most."""
    logits: int
    """The output layer's, which are gone when the backward pass comes to the layers."""
    bias: int
    """Of `peak`, the bias by distance of all layers."""
    scores: int
    """Scores that attention holds at once, where it writes them out."""
    exchanged: int
    """What is here for other context ranks in the backward pass of one layer."""
    freed: int
    """What a layer has freed when the backward pass comes to its attention."""
    in_flight: float
    """Micro-batches that are kept at once: several where later pipeline stages are to come."""

    @property
    def peak(self) -> int:
        """The most at any time, gradients of weights aside."""
        held = max(self.scores + self.exchanged - self.freed, 0)
        return int(self.in_flight * self.kept) + max(self.logits, self.again + held)


def activations_of(share: Share, encoded: Backend, bare: Backend, device_type: str) -> Activations:
    """Of all layers that are here, and of the embedding and the output layer if they are.

    Args:
        share: The sizes.
        encoded: The attention of layers in which the encoding acts.
        bare: That of the layers that it leaves alone.
        device_type: `cpu` or `cuda`, whose kernels save different things.
    """
    layer = _Layer(share, on_gpu=device_type == "cuda")
    attention, recompute = layer.attention, share.training.recompute
    num_bare = share.num_layers - share.num_encoded_layers
    backends = [(encoded, True, share.num_encoded_layers), (bare, False, num_bare)]
    kept = again = 0
    for backend, acts, count in backends:
        inside = attention.saved(backend, acts)
        whole = layer.around_attention + (0 if recompute == "selective" else inside - attention.released(backend, acts))
        kept += count * (layer.input if recompute == "full" else whole)
        if recompute != "none" and count:
            again = max(again, inside if recompute == "selective" else whole)
    biases = int(share.in_flight * share.num_encoded_layers) if recompute == "none" else 1
    return Activations(
        kept=kept + layer.at_the_ends,
        again=again,
        logits=layer.logits if share.stage.is_last else 0,
        bias=biases * attention.bias(encoded, acts=True),
        scores=max(attention.scores(backend) for backend, _, count in backends if count),
        exchanged=attention.exchanged,
        freed=layer.after_attention,
        in_flight=share.in_flight,
    )


class _Layer:
    """Bytes of one layer's parts. Measured on a CPU; what a GPU's kernels save instead is read off their code."""

    def __init__(self, share: Share, on_gpu: bool) -> None:
        self._share, self._on_gpu, self._itemsize = share, on_gpu, share.itemsize
        self._swiglu = share.model.activation == "swiglu"
        self._inner = share.tokens * share.model.ffn_size // share.tensor
        self.attention = Attention(share, on_gpu)

    @property
    def input(self) -> int:
        """The residual stream, all that full recomputation keeps."""
        return self._itemsize * self._share.tokens_between * self._share.model.hidden_size

    @property
    def at_the_ends(self) -> int:
        """Before the first layer that is here, and after the last: the next stage's input stays here, too."""
        share = self._share
        last = self.norm(share.model.hidden_size, share.tokens_between) if share.stage.is_last else self.input
        labels = BYTES_OF_LABELS * share.tokens if share.stage.is_first or share.stage.is_last else 0
        return last + labels + (self.dropped if share.stage.is_first else 0)

    @property
    def logits(self) -> int:
        """The softmax in fp32, and the logits or their gradient in the model's type where that is another."""
        each = WIDE + (self._itemsize if self._itemsize < WIDE else 0)
        return each * self._share.tokens * self._share.vocabulary // self._share.tensor

    @property
    def dropped(self) -> int:
        """The mask of one dropout on the residual stream: as numbers on a CPU, as booleans on a GPU."""
        if not self._share.model.hidden_dropout:
            return 0
        each = 1 if self._on_gpu else self._itemsize
        return each * self._share.tokens_between * self._share.model.hidden_size

    def norm(self, size: int, rows: int) -> int:
        """A norm of vectors: its input and output, which a linear layer saves, and per vector what it divides by.

        On a CPU torch's RMSNorm keeps input and normed input in fp32; a GPU has one kernel for it.
        """
        if self._share.model.norm == "layernorm":
            return rows * (2 * self._itemsize * size + 2 * self._itemsize)
        wide = self._itemsize if self._on_gpu else 2 * WIDE
        return rows * ((wide + self._itemsize) * size + WIDE)

    @property
    def around_attention(self) -> int:
        """What core attention is given and returns, and what comes before and after it."""
        contexts = self._itemsize * self.attention.queries
        return self._norm_and_dropout + self.attention.inputs + contexts + self._head_norms() + self.after_attention

    @property
    def after_attention(self) -> int:
        """The feed-forward layer with its norm and dropout."""
        # swiglu: the gate and the other half as one, its silu, a copy of the half, their product
        return (5 if self._swiglu else 2) * self._inner * self._itemsize + self._norm_and_dropout

    @property
    def _norm_and_dropout(self) -> int:
        return self.norm(self._share.model.hidden_size, self._share.tokens_between) + self.dropped

    def _head_norms(self) -> int:
        if not self._share.model.qk_norm:
            return 0
        size = self._share.model.head_size
        rows = (self.attention.queries + self.attention.keys) // size
        held = self._itemsize * size * rows  # the input, which is there anyhow
        wide_input = not self._on_gpu and self._itemsize < WIDE and self._share.model.norm == "rmsnorm"
        return self.norm(size, rows) - (0 if wide_input else held)
