"""The norms of a layer, as Megatron-core builds them, and how large their outputs can make the scores."""

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

Normed = torch.nn.RMSNorm | torch.nn.LayerNorm


class Norm:
    """torch's RMSNorm or LayerNorm, as the configuration says, allowed under sequence parallelism.

    Megatron-core's own wrapper of torch's norms refuses sequence parallelism where neither Apex nor TransformerEngine
    is installed. All that it takes is the mark below: the norm sees a part of the sequence on each tensor rank, so its
    gradients must be summed over them. A class, for Megatron-core takes a function as the module itself.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> torch.nn.Module:  # type: ignore[misc]
        """The norm's module."""
        return _norm(config, hidden_size, eps, summed=config.sequence_parallel)


class HeadNorm:
    """The norm of queries or keys over the dimensions of a head, one set of gains for all heads of the model.

    Each tensor rank norms the heads that it holds, so gradients must be summed over them at any layout: the mark of
    sequence parallelism asks for just that.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> torch.nn.Module:  # type: ignore[misc]
        """The norm's module; `hidden_size` is that of a head."""
        return _norm(config, hidden_size, eps, summed=True)


def largest_score(query_norm: Normed, key_norm: Normed, scale: float) -> Tensor:
    """`c >= |scale q_i k_j|` for every query and key that the norms put out: a scalar in fp64.

    A normed vector x has |x| <= sqrt(D). With gains g and biases b, the product of (g_q x + b_q) and (g_k y + b_k) is
    then at most D max|g_q g_k| + sqrt(D) (|g_q b_k| + |g_k b_q|) + |b_q b_k|; without biases the bound is attained.
    """
    (query_gain, query_bias), (key_gain, key_bias) = (_gain_and_bias(norm) for norm in (query_norm, key_norm))
    length = query_gain.numel() ** 0.5
    bound = length**2 * (query_gain * key_gain).abs().amax() + (query_bias * key_bias).sum().abs()
    bound = bound + length * ((query_gain * key_bias).norm() + (key_gain * query_bias).norm())
    # what is put out is rounded: twice for each factor, by half of eps at most
    return scale * bound * (1 + 2 * torch.finfo(query_norm.weight.dtype).eps)


def _norm(config: TransformerConfig, size: int, eps: float, summed: bool) -> Normed:
    norm = (torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm)(size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = summed  # type: ignore[attr-defined]
    return norm


def _gain_and_bias(norm: Normed) -> tuple[Tensor, Tensor]:
    """In fp64, zeros for the bias of a norm without one."""
    gain = norm.weight.detach().double()
    bias = norm.bias.detach().double() if isinstance(norm, torch.nn.LayerNorm) else torch.zeros_like(gain)
    return gain, bias
