"""Static windows around a kernel that takes one window a head, for devices where a running rule would have to wait."""

from collections.abc import Callable

from torch import Tensor

from megatron_mep.attention.windows import kept_pairs, score_bound, static_windows
from megatron_mep.attention.work import Work


class StaticWindows:
    """Attention by a kernel under the windows that this call's queries, keys and bias allow.

    Args:
        kernel: `kernel(query, key, value, bias, scale=..., windows=...)`.
        epsilon: Share of a row's softmax that may be dropped; 0 drops nothing.
        on_host: Whether the kernel takes the windows as numbers of the host, for which a GPU is waited.
    """

    def __init__(self, kernel: Callable[..., Tensor], epsilon: float, *, on_host: bool) -> None:
        self._kernel, self._epsilon, self._on_host = kernel, epsilon, on_host

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        *,
        scale: float,
        bound: Tensor | None = None,
        work: Work | None = None,
    ) -> Tensor:
        """The arguments and result of `toeplitz_attention`.

        `bound` is the largest score that any query and key can have, where it is known, as under norms of queries and
        keys; then neither is read for the windows.
        """
        num_queries, num_keys = query.size(2), key.size(2)
        if not self._epsilon:
            return self._kernel(query, key, value, bias, scale=scale)
        bounds = score_bound(query.detach(), key.detach(), scale) if bound is None else bound.expand(query.size(1))
        windows = static_windows(bias.detach()[:, :num_keys], bounds, self._epsilon)
        if work is not None:
            kept = query.size(0) * kept_pairs(windows, num_queries, num_keys).sum()
            work.count(kept, query.shape, num_keys, self._epsilon)
        given = tuple(windows.tolist()) if self._on_host else windows
        return self._kernel(query, key, value, bias, scale=scale, windows=given)
