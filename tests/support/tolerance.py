"""The one place that says how far a result may be from the truth."""

import torch
from torch import Tensor


def assert_within_budget(actual: Tensor, plain: Tensor, exact: Tensor, what: str = "result") -> None:
    """Assert that a kernel errs little more than plain PyTorch does in the same dtype.

    The budget is 2 (error of plain + eps max |exact|), errors being the largest difference from `exact`.

    Args:
        actual: What is tested.
        plain: The same by plain operations in the dtype of `actual`.
        exact: An oracle's answer in fp64, finite.
        what: Its name in the message: `output`, `gradient of key`.
    """
    assert exact.dtype == torch.float64, f"{what}: the oracle answers in {exact.dtype}, not in fp64"
    assert bool(exact.isfinite().all()), f"{what}: the oracle's answer is not finite"
    assert actual.dtype == plain.dtype, f"{what}: is {actual.dtype}, plain PyTorch gives {plain.dtype}"
    assert actual.shape == plain.shape == exact.shape, f"{what}: {actual.shape}, {plain.shape}, {exact.shape}"
    differences = (actual.double() - exact).abs()
    plain_error = (plain.double() - exact).abs().max().item()
    budget = 2 * (plain_error + torch.finfo(plain.dtype).eps * exact.abs().max().item())
    # a comparison with NaN is false, so NaN fails too.
    within = differences <= budget
    if bool(within.all()):
        return
    worst = _index(differences.nan_to_num(nan=torch.inf).argmax(), differences)
    raise AssertionError(
        f"{what}: {int((~within).sum())} of {within.numel()} entries are over the budget of {budget:.3g} "
        f"(plain {plain.dtype} errs by {plain_error:.3g}); worst at {worst}: "
        f"{actual[worst].item():.9g}, exact {exact[worst].item():.9g}, off by {differences[worst].item():.3g}"
    )


def assert_exact_equal(actual: Tensor, expected: Tensor, what: str = "result") -> None:
    """Assert that two tensors are equal in dtype, shape and every bit of every number (0 and -0 are one, NaN none)."""
    assert actual.dtype == expected.dtype, f"{what}: is {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: is {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    differs = actual != expected
    if not bool(differs.any()):
        return
    first = _index(differs.flatten().int().argmax(), differs)
    raise AssertionError(
        f"{what}: {int(differs.sum())} of {differs.numel()} entries differ; first at {first}: "
        f"{actual[first].item()!r}, expected {expected[first].item()!r}"
    )


def _index(flat: Tensor, tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(index) for index in torch.unravel_index(flat, tensor.shape))
