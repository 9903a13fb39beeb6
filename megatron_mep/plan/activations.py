"""What a forward pass keeps for the backward pass, from the operations of our layers and what each saves."""

from dataclasses import dataclass

from megatron_mep.attention.backend import Backend
from megatron_mep.attention.chunked import NUM_ROWS
from megatron_mep.encodings.base import DistanceBias, Rotation
from megatron_mep.plan.share import Share

WIDE = 4
"""Bytes of a number in fp32."""
BYTES_OF_LABELS = 25
"""A token and its label in int64, its loss and a mask."""
COPIES_OF_SCORES = 8
"""What `chunked` holds of a chunk's scores in the backward pass, about; more where an encoding computes more a pair."""

COPIES_OF_ALL_SCORES = 3
"""The same of `reference`, beside what it saves."""


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
    """Of `kept` and `again`, the bias by distance of all layers."""
    scores: int
    """Scores that attention holds at once, where it writes them out."""

    @property
    def peak(self) -> int:
        """The most at any time, gradients aside."""
        return self.kept + max(self.logits, self.again + self.scores)


def activations_of(share: Share, encoded: Backend, bare: Backend, device_type: str) -> Activations:
    """Of all layers and the output layer.

    Args:
        share: The sizes.
        encoded: The attention of layers in which the encoding acts.
        bare: That of the layers that it leaves alone.
        device_type: `cpu` or `cuda`, whose kernels save different things.
    """
    layer = _Layer(share, on_gpu=device_type == "cuda")
    recompute = share.training.recompute
    num_bare = share.model.num_layers - share.model.num_encoded_layers
    backends = [(encoded, True, share.model.num_encoded_layers), (bare, False, num_bare)]
    inside = {acts: layer.of_attention(backend, acts) for backend, acts, _ in backends}
    kept = again = 0
    for backend, acts, count in backends:
        whole = layer.around_attention(backend) + (0 if recompute == "selective" else inside[acts])
        of_one = inside[acts] if recompute == "selective" else whole
        if recompute == "full":
            kept += count * layer.input
        else:
            kept += count * whole
        if recompute != "none" and count:
            again = max(again, of_one)
    biases = share.model.num_encoded_layers if recompute == "none" else 1
    return Activations(
        kept=kept + layer.norm(share.model.hidden_size, share.tokens_between) + layer.dropped + layer.labels,
        again=again,
        logits=layer.logits,
        bias=biases * layer.of_bias(encoded, acts=True),
        scores=max(layer.scores(backend) for backend, _, count in backends if count),
    )


class _Layer:
    """Bytes of one layer's parts. Measured on a CPU; what a GPU's kernels save instead is read off their code."""

    def __init__(self, share: Share, on_gpu: bool) -> None:
        model, tokens = share.model, share.tokens
        self._share, self._on_gpu, self._itemsize = share, on_gpu, share.itemsize
        self._queries = tokens * model.hidden_size // share.tensor
        self._keys = tokens * max(model.groups // share.tensor, 1) * model.head_size
        self._heads = model.num_attention_heads // share.tensor
        self._swiglu = model.activation == "swiglu"
        self._inner = tokens * model.ffn_size // share.tensor

    @property
    def input(self) -> int:
        """The residual stream, all that full recomputation keeps."""
        return self._itemsize * self._share.tokens_between * self._share.model.hidden_size

    @property
    def labels(self) -> int:
        return BYTES_OF_LABELS * self._share.tokens

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

    def around_attention(self, backend: Backend) -> int:
        """Norms, the feed-forward layer, dropouts, and the queries, keys, values and contexts of attention."""
        model, share = self._share.model, self._share
        # swiglu: the gate and the other half as one, its silu, a copy of the half, their product
        feed_forward = (5 if self._swiglu else 2) * self._inner * self._itemsize
        norms = 2 * self.norm(model.hidden_size, share.tokens_between)
        heads = (self._queries + 2 * self._keys) * self._itemsize
        if model.groups < model.num_attention_heads:
            # queries lie apart in the product of queries, keys and values of a group
            heads += self._queries * self._itemsize
        contexts = self._queries * self._itemsize
        if backend.name != "chunked" and self._on_gpu:
            contexts *= 2
        return norms + feed_forward + heads + contexts + self._head_norms() + 2 * self.dropped

    def of_attention(self, backend: Backend, acts: bool) -> int:
        """What core attention saves beside its inputs and its result; all of it is computed again under `selective`."""
        share, encoding = self._share, self._share.model.encoding
        rows = share.tokens * self._heads
        saved = self.of_bias(backend, acts)
        if acts and isinstance(encoding, Rotation):
            saved += (self._queries + self._keys) * self._itemsize
        match backend.name:
            case "compiled":
                saved += 2 * WIDE * rows
            case "chunked":
                saved += WIDE * self._queries
                if self._itemsize < WIDE:
                    # wide copies in the place of queries, keys and values themselves
                    saved += 2 * WIDE * self._keys - self._itemsize * (self._queries + 2 * self._keys)
            case "reference":
                probs = WIDE + (self._itemsize if self._itemsize < WIDE else 0)
                saved += (probs * rows + share.training.seq_length) * share.training.seq_length
            case _:
                saved += WIDE * rows
        return saved

    def of_bias(self, backend: Backend, acts: bool) -> int:
        """The bias by distance of this rank's heads, in fp32; `compiled` keeps it as its kernel reads it, too."""
        if not acts or not isinstance(self._share.model.encoding, DistanceBias):
            return 0
        copies = {"compiled": 2, "reference": 0}.get(backend.name, 1)
        return copies * WIDE * self._heads * self._share.training.seq_length

    def scores(self, backend: Backend) -> int:
        """Those that attention writes out: of a chunk of queries, or of all."""
        length = self._share.training.seq_length
        rows = {"chunked": min(NUM_ROWS, length), "reference": length}.get(backend.name, 0)
        copies = COPIES_OF_SCORES if backend.name == "chunked" else COPIES_OF_ALL_SCORES
        return copies * WIDE * self._share.training.micro_batch_size * self._heads * rows * length

    def _head_norms(self) -> int:
        if not self._share.model.qk_norm:
            return 0
        size = self._share.model.head_size
        rows = (self._queries + self._keys) // size
        held = self._itemsize * size * rows  # the input, which is there anyhow
        wide_input = not self._on_gpu and self._itemsize < WIDE and self._share.model.norm == "rmsnorm"
        return self.norm(size, rows) - (0 if wide_input else held)
