"""The decoder: embeddings, layers and a final norm, in plain torch.

Sequences of a batch may begin with padding. Attention takes sequences with as much padding together and leaves it out,
so that each is computed just as it is alone, whatever the encoding makes of positions.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from megatron_mep.encodings.base import Encoding, KeyBias
from megatron_mep.encodings.carried import Carried
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.placement import Embedded, Placed
from megatron_mep.export.standalone.attention_mep import attend
from megatron_mep.export.standalone.parts_mep import EncodingWeights, FeedForward, norm_of, positions

Keep = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""`(slot, [B, *, S, *], [B, *, S, *])` -> what it was given for that slot so far, these two put behind, along S."""


class Sequences(NamedTuple):
    """Sequences of a batch that begin with as much padding."""

    rows: Tensor | slice
    """Which they are."""
    padding: int
    """Tokens before the first of their own."""
    first: int
    """The first query of their own, among the queries of this call."""


class Decoder(nn.Module):
    """Reads tokens that follow those read before, and gives hidden states."""

    def __init__(self, config: Any, encoding: Encoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoding_weights = EncodingWeights(config.embedding_weights)
        numbers = range(1, config.num_hidden_layers + 1)
        self.layers: Any = nn.ModuleList(Layer(config, encoding, number) for number in numbers)
        self.norm = norm_of(config, config.hidden_size)

    def forward(self, tokens: Tensor, padding: Tensor, num_read: int = 0, keep: Keep | None = None) -> Tensor:
        """Tokens `[B, S]` that follow `num_read` others, of which `padding [B]` are none -> `[B, S, hidden_size]`.

        What is made of padding is finite and means nothing.
        """
        keep = keep or (lambda _, first, second: (first, second))
        sequences = list(_by_padding(padding, num_read, num_read + tokens.size(1)))
        places = self._places(tokens, sequences, keep)
        hidden = self._embedded(tokens, sequences, places, num_read)
        states = self._initial_states(hidden, sequences, num_read)
        for layer in self.layers:
            owner = layer.self_attn.takes_weights_of
            weights = self.layers[owner - 1].self_attn.encoding_weights() if owner else {}
            hidden, states = layer(hidden, states, sequences, places, weights, keep)
        normed: Tensor = self.norm(hidden)
        return normed

    def _places(self, tokens: Tensor, sequences: list[Sequences], keep: Keep) -> list[Tensor | None]:
        """The tracks `[T, B, K]` of each of the sequences' tokens so far; `None` where they follow in order."""
        if not isinstance(self.encoding, Placed):
            return [None] * len(sequences)
        column = tokens[:, None, :, None]
        read = keep(len(self.layers), column, column)[0][:, 0, :, 0]
        return [self.encoding.places(read[rows, padding:], training=False).float() for rows, padding, _ in sequences]

    def _embedded(
        self, tokens: Tensor, sequences: list[Sequences], places: list[Tensor | None], num_read: int
    ) -> Tensor:
        embedded: Tensor = self.embed_tokens(tokens)
        if not isinstance(self.encoding, Embedded):
            return embedded
        result = torch.zeros_like(embedded)
        for (rows, padding, first), placed in zip(sequences, places, strict=True):
            length = tokens.size(1) - first
            position = positions(num_read + first - padding, length, tokens) if placed is None else placed
            added = self.encoding.added(position[..., -length:], embedded.size(-1), **self.encoding_weights())
            result[rows, first:] = embedded[rows, first:] + added.to(embedded.dtype)
        return result

    def _initial_states(self, hidden: Tensor, sequences: list[Sequences], num_read: int) -> Tensor | None:
        """`[B, H, S, D]`, where states of tokens travel beside their hidden states."""
        if not isinstance(self.encoding, Carried):
            return None
        num_samples, length, _ = hidden.shape
        attention = self.layers[0].self_attn
        states = hidden.new_zeros(
            (num_samples, attention.num_heads, length, attention.head_size),
            dtype=torch.promote_types(hidden.dtype, torch.float32),
        )
        for rows, padding, first in sequences:
            position = positions(num_read + first - padding, length - first, hidden)
            states[rows, :, first:] = self.encoding.initial(position, attention.head_size).to(states.dtype)
        return states


class Layer(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and added to its input."""

    def __init__(self, config: Any, encoding: Encoding, number: int) -> None:
        super().__init__()
        self.input_layernorm = norm_of(config, config.hidden_size)
        self.self_attn = Attention(config, encoding, number)
        self.post_attention_layernorm = norm_of(config, config.hidden_size)
        self.mlp = FeedForward(config)

    def forward(
        self,
        hidden: Tensor,
        states: Tensor | None,
        sequences: list[Sequences],
        places: list[Tensor | None],
        weights: dict[str, Tensor],
        keep: Keep,
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states `[B, S, hidden_size]` and states of the encoding, if there are any."""
        context, attended = self.self_attn(self.input_layernorm(hidden), states, sequences, places, weights, keep)
        hidden = hidden + context
        output = self.mlp(self.post_attention_layernorm(hidden))
        encoding = self.self_attn.encoding
        # the last layer has no weights of states, for nothing would read what they do
        if states is not None and isinstance(encoding, Carried) and weights:
            before, averaged = (tensor.permute(2, 0, 1, 3) for tensor in (states, attended.to(states.dtype)))
            states = encoding.updated(before, averaged, output.transpose(0, 1), **weights).permute(1, 2, 0, 3)
        return hidden + output, states


class Attention(nn.Module):
    """Queries, keys and values of hidden states, and what causal attention under the encoding makes of them."""

    def __init__(self, config: Any, encoding: Encoding, number: int) -> None:
        super().__init__()
        bare = number in config.nope_layers
        self.encoding = Nope() if bare else encoding
        self.slot = number - 1
        self.read_slot = config.num_hidden_layers - 1 + number - sum(other < number for other in config.nope_layers)
        """Where what it reads off hidden states, or states themselves, are kept."""
        self.takes_weights_of: int | None = config.encoding_weights_of[number - 1]
        """The layer whose weights of the encoding it uses, counted from 1."""
        self.encoding_weights = EncodingWeights(config.encoding_weights if self.takes_weights_of == number else {})
        self.num_heads, self.head_size = config.num_attention_heads, config.head_dim
        of_queries = self.num_heads * self.head_size
        of_keys = config.num_key_value_heads * self.head_size
        bias = config.linear_bias
        self.q_proj = nn.Linear(config.hidden_size, of_queries, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, of_keys, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, of_keys, bias=bias)
        self.o_proj = nn.Linear(of_queries, config.hidden_size, bias=bias)
        self.q_norm, self.k_norm = (
            norm_of(config, self.head_size) if config.qk_norm else nn.Identity() for _ in range(2)
        )

    def forward(
        self,
        hidden: Tensor,
        states: Tensor | None,
        sequences: list[Sequences],
        places: list[Tensor | None],
        weights: dict[str, Tensor],
        keep: Keep,
    ) -> tuple[Tensor, Tensor]:
        """What is added to the hidden states, and the attended states `[B, H, S, D]`, of no size where there are none.

        `weights` are those of the encoding.
        """
        query, key, value = (
            projection(hidden).unflatten(-1, (-1, self.head_size))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key, value = (heads.transpose(1, 2) for heads in (self.q_norm(query), self.k_norm(key), value))
        key, value = keep(self.slot, key, value)
        read, gain = self._read(hidden, states, weights, keep)
        num_samples, _, length, _ = query.shape
        width = self.head_size * (1 if states is None else 2)
        context = query.new_zeros((num_samples, self.num_heads, length, width))
        for (rows, padding, first), placed in zip(sequences, places, strict=True):
            heads = query[rows, :, first:], key[rows, :, padding:], value[rows, :, padding:]
            own = None if read is None else read[rows, :, padding:]
            if own is not None and gain is not None:
                own = torch.cat((own, gain[rows, :, first:].to(own.dtype)), dim=-1)
            position = positions(0, key.size(2) - padding, hidden) if placed is None else placed
            context[rows, :, first:] = attend(self.encoding, heads, position, own, weights)
        context, attended = context.tensor_split([self.head_size], dim=-1)
        return self.o_proj(context.transpose(1, 2).flatten(2)), attended

    def _read(
        self, hidden: Tensor, states: Tensor | None, weights: dict[str, Tensor], keep: Keep
    ) -> tuple[Tensor | None, Tensor | None]:
        """The increments `[B, H, K]` of all tokens and the gains of these, or the states `[B, H, K, D]` of all."""
        if isinstance(self.encoding, KeyBias):
            by_token = hidden.transpose(0, 1)
            increments = self.encoding.increments(by_token, **weights)[..., None]
            return keep(self.read_slot, increments, increments)[0][..., 0], self.encoding.gain(by_token, **weights)
        if states is None:
            return None, None
        return torch.cat(keep(self.read_slot, *states.chunk(2, dim=-1)), dim=-1), None


def _by_padding(padding: Tensor, num_read: int, num_tokens: int) -> Iterator[Sequences]:
    """The sequences of a batch that have tokens of their own."""
    numbers = padding.unique().tolist()
    for number in numbers:
        if number < num_tokens:
            # all together need no copy of what was kept
            rows = (padding == number).nonzero()[:, 0] if len(numbers) > 1 else slice(None)
            yield Sequences(rows, number, max(number - num_read, 0))
