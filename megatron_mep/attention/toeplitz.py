"""Causal attention with a bias by distance on a CPU, in memory linear in the number of positions.

Tiles of queries and the keys that they see go to torch's flash kernel, with their bias as a view (`hankel`), and are
joined by their logsumexp. Exact where `epsilon` is 0; otherwise keys too far back to matter are left out (`reach`).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatron_mep.attention.hankel import keys_of, mask_of, mask_vector, rows_of
from megatron_mep.attention.join import join
from megatron_mep.attention.reach import Reach
from megatron_mep.attention.tiles import ALL, Tile, block_tiles, row_tiles
from megatron_mep.attention.toeplitz_backward import fixed_backward, learned_backward
from megatron_mep.attention.work import Work


class Rows(NamedTuple):
    """Query rows of a tile."""

    diagonal: int = 256
    """That reaches the diagonal."""
    block: int = 1024
    """Before the diagonal, of all heads; torch's kernel takes large steps from 768 on."""
    window: int = 256
    """Where keys are dropped; torch's kernel takes them in steps of 64, which threads share."""
    learned: int = 128
    """In the backward pass of a learned bias, of all heads of a group together."""


def toeplitz_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    *,
    scale: float,
    epsilon: float = 0.0,
    work: Work | None = None,
    rows: Rows = Rows(),  # noqa: B008
) -> Tensor:
    """Causal softmax attention with `bias[h, query position - key position]` added to the scaled scores.

    Args:
        query: `[B, H, Q, D]`, the last Q of the K positions. Any strides, as for key and value.
        key: `[B, G, K, D]`; head h reads group h // (H // G).
        value: `[B, G, K, D]`.
        bias: `[H, N]` by distance, N >= K, fp32 or wider. -inf excludes a distance; distance 0 stays finite.
        scale: Factor of the scores, usually D ** -0.5.
        epsilon: Share of a row's softmax that may be dropped, proved for every row; 0 drops nothing.
        work: Where to add what was computed and dropped.
        rows: How the queries are cut into tiles.

    Returns:
        `[B, H, Q, D]`, in memory `[Q, B, H, D]`. A key or value that is no number may show in queries of its tile that
        come before it; where it is left out it does not show at all.
    """
    assert_sound(query, key, bias)
    query, key, value = (with_dense_rows(tensor) for tensor in (query, key, value))
    output: Tensor = _ToeplitzAttention.apply(query, key, value, bias, scale, epsilon, work, rows)
    return output


def assert_sound(query: Tensor, key: Tensor, bias: Tensor) -> None:
    """Assert that the arguments of an attention on a CPU belong together."""
    num_heads, num_queries, num_keys = query.size(1), query.size(2), key.size(2)
    assert query.device.type == "cpu", f"toeplitz attention computes on a CPU, not on {query.device}"
    assert num_heads % key.size(1) == 0, f"{num_heads} heads do not split over {key.size(1)} groups"
    assert num_queries <= num_keys, f"{num_queries} queries cannot be the last of {num_keys} positions"
    assert bias.size(0) == num_heads, f"bias of {bias.size(0)} heads for {num_heads}"
    assert bias.size(1) >= num_keys, f"bias ends at distance {bias.size(1) - 1}, before {num_keys} positions"
    assert bias.dtype in (torch.float32, torch.float64), f"a bias is fp32 or wider, not {bias.dtype}"


class _ToeplitzAttention(torch.autograd.Function):
    """Both passes by hand: autograd would make a mask that learns as large as the scores, and its gradient too."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        scale: float,
        epsilon: float,
        work: Work | None,
        rows: Rows,
    ) -> Tensor:
        num_queries, num_keys = query.size(2), key.size(2)
        reach = Reach.of(query, key, bias, scale, epsilon, rows.window) if epsilon else None
        sweep = _Sweep(query, key, value, bias, scale, rows.window if reach else rows.diagonal)
        if reach is None:
            sweep.visit(block_tiles(num_queries, num_keys, rows.diagonal, rows.block))
        else:
            sweep.visit(reach.near_tiles())
            sweep.visit(reach.far_tiles(sweep.logsumexp))
        if work is not None:
            work.add(sweep.tiles, query.shape, num_keys, reach.dropped if reach else 0.0)
        ctx.save_for_backward(query, key, value, bias, sweep.output, sweep.logsumexp)
        ctx.scale, ctx.learned_rows = scale, rows.learned
        # where there is no window to heed, a learned bias takes all keys of a query at once
        whole = ctx.needs_input_grad[3] and reach is None
        ctx.tiles = list(row_tiles(num_queries, num_keys, num_queries)) if whole else sweep.tiles
        return sweep.output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        given = grad_output, *ctx.saved_tensors
        grads: tuple[Tensor | None, ...]
        if ctx.needs_input_grad[3]:
            grads = learned_backward(*given, scale=ctx.scale, tiles=ctx.tiles, num_rows=ctx.learned_rows)
        else:
            grads = *fixed_backward(*given, scale=ctx.scale, tiles=ctx.tiles), None
        return *grads, None, None, None, None


class _Sweep:
    """Attention over the tiles visited so far."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float, num_rows: int) -> None:
        num_samples, num_heads, num_queries, head_size = query.shape
        dtype = torch.promote_types(query.dtype, torch.float32)
        self._query, self._key, self._value, self._scale = query, key, value, scale
        self._vector = mask_vector(bias, key.size(2), num_rows, dtype)
        self.output = query.new_empty(num_queries, num_samples, num_heads, head_size).permute(1, 2, 0, 3)
        """`[B, H, Q, D]`, in memory `[Q, B, H, D]`."""
        self.logsumexp = query.new_empty(num_samples, num_heads, num_queries, dtype=dtype)
        """The logarithm of each softmax's denominator, `[B, H, Q]` in fp32 or wider."""
        self.tiles: list[Tile] = []

    def visit(self, tiles: Iterable[Tile]) -> None:
        """Attend to each tile's keys too; the first tile of a query is the one in which it sees itself."""
        for tile in tiles:
            self.tiles.append(tile)
            # the keys of a band's tiles overlap, so that samples cannot lie beside them in one batch
            for sample in range(self._query.size(0)) if tile.num_tiles > 1 else (ALL,):
                output, logsumexp = (rows_of(rows[sample, tile.heads], tile) for rows in (self.output, self.logsumexp))
                part_output, part_logsumexp = (part.flip(2) for part in self._attended(tile, sample))
                if tile.on_diagonal:
                    output.copy_(part_output)
                    logsumexp.copy_(part_logsumexp)
                else:
                    join(output, logsumexp, part_output, part_logsumexp)

    def _attended(self, tile: Tile, sample: int | slice) -> tuple[Tensor, Tensor]:
        """Output and logsumexp of a tile, rows from the last to the first."""
        groups = tile.groups(self._query.size(1) // self._key.size(1))
        parts: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            rows_of(self._query[sample, tile.heads], tile).flip(2),
            keys_of(self._key[sample, groups], tile),
            keys_of(self._value[sample, groups], tile),
            attn_mask=mask_of(tile, self._vector[tile.heads], self._key.size(2)),
            scale=self._scale,
        )
        return parts


def with_dense_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied only where the kernel could not read it: where its last dimension is not contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
