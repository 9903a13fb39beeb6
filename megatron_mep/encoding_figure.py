"""A figure of an encoding: what it does to scores by distance in each head, and how far back it lets heads reach."""

from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter
from torch import Tensor

from megatron_mep.catalogue import HEAD_SIZE, MOST_DRAWN, drawn_weights, has_meaning, refuse_too_many
from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import DistanceBias, Encoding
from megatron_mep.encodings.effect import effect
from megatron_mep.encodings.receptive_field import receptive_field
from megatron_mep.reporting.drawing import look, png, svg

WRITERS = {".png": png, ".svg": lambda figure: svg(figure).encode()}


def draw(encoding: Encoding, num_heads: int, length: int, file: Path) -> str:
    """Writes the figure of an encoding with `num_heads` heads at `length` tokens; a line that says what is in it.

    The suffix of `file` says as what: `.png` or `.svg`.
    """
    if file.suffix not in WRITERS:
        raise ConfigError(
            Mistake("--plot", str(file), "must end in .png or .svg", f"try {file.stem or encoding.name}.png")
        )
    told = has_meaning(encoding)
    refuse_too_many(num_heads * length * HEAD_SIZE, MOST_DRAWN, "--plot")
    weights = drawn_weights(encoding, num_heads)
    by_distance = effect(encoding, weights, torch.tensor([length - 1]), num_heads, HEAD_SIZE)[:, 0].flip(1)
    fields = receptive_field(encoding, weights, length) if isinstance(encoding, DistanceBias) else None
    with look():
        figure = Figure(figsize=(9.6 if fields is not None else 6.4, 3.6), layout="constrained")
        axes = figure.subplots(1, 1 if fields is None else 2, squeeze=False)[0]
        _draw_effect(axes[0], by_distance, f"{encoding.name}: {told}")
        if fields is not None:
            _draw_fields(axes[1], fields)
        _write(file, WRITERS[file.suffix](figure))
    reach = "" if fields is None else f"; 99 % of a head's kernel lies within {', '.join(map(str, fields.tolist()))}"
    return f"{file}: {told}, {num_heads} heads, {length} tokens{reach}"


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        rule = f"must be a file that can be written ({error.strerror})"
        raise ConfigError(Mistake("--plot", str(file), rule, "name another, in a folder that exists")) from error


def _draw_effect(axes: Axes, by_distance: Tensor, title: str) -> None:
    """`[H, L]` by distance."""
    colours = mpl.colormaps["viridis"].resampled(by_distance.size(0))
    for head, values in enumerate(by_distance.tolist()):
        axes.plot(range(len(values)), values, color=colours(head), label=f"head {head}")
    axes.set_title(title)
    axes.set_xlabel("distance")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("symlog", linthresh=1)
    _in_figures(axes)
    axes.legend(fontsize="x-small", ncols=2)


def _draw_fields(axes: Axes, fields: Tensor) -> None:
    """`[H]`."""
    axes.bar(range(len(fields)), fields.tolist())
    axes.set_title("distance that holds 99 % of the kernel")
    axes.set_xlabel("head")
    axes.set_yscale("log")
    _in_figures(axes)


def _in_figures(axes: Axes) -> None:
    """Plain numbers at the ticks: text is never parsed as mathematics here."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
