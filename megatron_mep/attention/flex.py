"""Causal attention with a bias by distance on a GPU: torch's FlexAttention, a table a head and a mask of blocks.

A score finds its bias in a row of the table by an index that grows with the key, so that neighbouring keys read
neighbouring numbers. Blocks of queries and keys that the causal mask or the windows leave empty are skipped.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from megatron_mep.attention.flex_mask import causal_block_mask, whole_blocks
from megatron_mep.config.errors import ConfigError, Mistake

MAX_COMPILATIONS = 64
"""The next is an error; torch's default of 8 is fewer than the lengths of an evaluation, each with its windows."""

Modification = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""`modification(score, batch, head, query, key)` -> score, all of one pair."""


@dataclass(frozen=True)
class Kernel:
    """Which of FlexAttention's kernels computes."""

    name: Literal["TRITON", "FLASH", "AUTO"]
    """What torch calls it; `AUTO` is the only one on a CPU."""
    reason: str
    """Why, for the line at start-up."""
    by_length: bool = False
    """Whether it is compiled anew for every length."""
    block_queries: int = 128
    """Queries of a block of the mask."""


def kernel_for(
    *,
    learned: bool,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
    flash_installed: bool,
    deterministic: bool = False,
) -> Kernel:
    """FlashAttention's kernel where it serves, else Triton's.

    Args:
        learned: Whether the bias is trained.
        dtype: Of queries, keys and values.
        capability: The GPU's compute capability: `torch.cuda.get_device_capability()`; None on a CPU.
        flash_installed: `flash_is_installed()`.
        deterministic: `torch.are_deterministic_algorithms_enabled()`.
    """
    if capability is None:
        # what torch writes in C++ for lengths that change does not compile
        return Kernel("AUTO", "C++ kernel, which only evaluates", by_length=True)
    if learned:
        against = "a learned bias gets no gradient from FlashAttention's"
    elif dtype not in (torch.bfloat16, torch.float16):
        against = f"FlashAttention's does not compute in {dtype}"
    elif capability[0] not in (9, 10):
        against = "FlashAttention's is for compute capability 9 and 10"
    elif deterministic:
        against = "FlashAttention's has no deterministic backward pass for this mask"
    elif not flash_installed:
        against = "flash_attn.cute is not there (pip install --pre flash-attn-4)"
    else:
        # on 10 a thread block takes two tiles of queries, and a block of the mask must hold both
        block_queries = 256 if capability[0] == 10 else 128
        return Kernel("FLASH", "FlashAttention kernel", by_length=True, block_queries=block_queries)
    return Kernel("TRITON", f"Triton kernel: {against}")


def flash_is_installed() -> bool:
    """Whether FlashAttention's CuTe kernels are there, as torch looks for them: this imports `flash_attn` alone."""
    try:
        return importlib.util.find_spec("flash_attn.cute") is not None
    except ImportError:
        return False


def flex_mistakes(*, device_type: str, gradients: bool, learned: bool, deterministic: bool) -> list[Mistake]:
    """What FlexAttention cannot do, though torch may only say so late, or not at all.

    Args:
        device_type: `cpu` or `cuda`.
        gradients: Whether a backward pass follows.
        learned: Whether the bias gets a gradient in it.
        deterministic: `torch.are_deterministic_algorithms_enabled()`.
    """
    key, mistakes = "model.attention_backend", []
    if gradients and device_type == "cpu":
        rule = "flex has no backward pass on a CPU, where torch's FlexAttention only evaluates"
        mistakes.append(Mistake(key, None, rule, "set it to auto, which trains on a CPU, or train on a GPU"))
    if gradients and learned and deterministic:
        rule = "flex adds up the gradient of a learned bias in no fixed order, which deterministic algorithms exclude"
        remedy = "turn torch.use_deterministic_algorithms off, or choose a model.encoding with a fixed bias"
        mistakes.append(Mistake(key, None, rule, remedy))
    return mistakes


@dataclass(frozen=True, eq=False)
class FlexAttention:
    """An attention backend: built once and called by all layers, it keeps what was compiled and the last masks.

    A mask takes 16 bytes a head and block of queries and keys: 128 MiB at 8 heads and 131072 positions.
    """

    kernel: Kernel
    max_masks: int = 8
    """How many masks are kept, of different windows or lengths."""
    compiled: bool = True
    """Otherwise the same operations one by one, which hold all scores: to check short sequences, on a CPU too."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        *,
        scale: float,
        windows: Sequence[int] | None = None,
        first_query: int | None = None,
    ) -> Tensor:
        """Causal softmax attention with `bias[h, query position - key position]` added to the scaled scores.

        Args:
            query: `[B, H, Q, D]`, D >= 16 on a GPU.
            key: `[B, G, K, D]`, at positions 0 .. K - 1; head h reads group h // (H // G).
            value: `[B, G, K, D]`.
            bias: `[H, N]` by distance, N >= first_query + Q, fp32 or wider; used in fp32.
            scale: Factor of the scores, usually D ** -0.5.
            windows: W_h of each head: distances 0 .. W_h - 1 are kept, and more up to a whole block. Numbers of the
                host, as the mask is built there: a `tolist()` of windows on a GPU waits for it, so take them seldom.
            first_query: Position of the first query; K - Q if not given, where the queries are the last positions.

        Returns:
            `[B, H, Q, D]`.
        """
        num_heads, num_queries, num_keys = query.size(1), query.size(2), key.size(2)
        first = num_keys - num_queries if first_query is None else first_query
        assert num_heads % key.size(1) == 0, f"{num_heads} heads do not split over {key.size(1)} groups"
        assert first >= 0, f"{num_queries} queries cannot be the last of {num_keys} positions"
        assert bias.size(0) == num_heads, f"bias of {bias.size(0)} heads for {num_heads}"
        assert bias.dtype in (torch.float32, torch.float64), f"a bias is fp32 or wider, not {bias.dtype}"
        assert windows is None or len(windows) == num_heads, f"windows of {len(windows or ())} heads for {num_heads}"
        mistakes = flex_mistakes(
            device_type=query.device.type,
            gradients=any(tensor.requires_grad for tensor in (query, key, value, bias)),
            learned=bias.requires_grad,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        if mistakes:
            raise ConfigError(mistakes)
        blocks = None if windows is None else whole_blocks(windows, first + num_queries)
        output: Tensor = self._flex(
            query,
            key,
            value,
            score_mod=bias_by_distance(bias, num_queries, num_keys, first),
            block_mask=self._block_mask(blocks, num_queries, num_keys, first, query.device),
            scale=scale,
            enable_gqa=num_heads != key.size(1),
            kernel_options={"BACKEND": self.kernel.name},
        )
        return output

    @cached_property
    def _flex(self) -> Callable[..., Tensor]:
        if not self.compiled:
            return flex_attention
        # None: for the first length, which training keeps, and for the second once more for all others, unless the
        # kernel takes no number into its source that may change. `fullgraph`: past its limit torch would go on without
        # compiling, and hold all scores.
        return torch.compile(  # type: ignore[call-overload]  # torch's overloads leave out the limit
            flex_attention,
            fullgraph=True,
            dynamic=False if self.kernel.by_length else None,
            recompile_limit=MAX_COMPILATIONS,
        )

    @cached_property
    def _block_mask(self) -> Callable[..., BlockMask]:
        return lru_cache(self.max_masks)(partial(causal_block_mask, block_queries=self.kernel.block_queries))


def bias_by_distance(bias: Tensor, num_queries: int, num_keys: int, first_query: int) -> Modification:
    """Adds `bias[h, first_query + query - key]` to a score, and nothing where the key is in the future.

    The kernels look up pairs in the future too, before they mask them, so the table has an entry for every pair.
    """
    num_distances, nearest = first_query + num_queries, first_query - num_keys + 1
    assert bias.size(1) >= num_distances, f"bias ends at distance {bias.size(1) - 1}, before {num_distances} positions"
    past = bias[:, max(nearest, 0) : num_distances].float().flip(1)
    table = functional.pad(past, (0, max(-nearest, 0)))  # [H, Q + K - 1], from the farthest distance to the nearest
    last = num_queries - 1

    def modification(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
        return score + table[head, key - query + last]

    return modification
