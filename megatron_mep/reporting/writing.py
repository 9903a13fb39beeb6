"""Tables as text: for the terminal, as Markdown, and as LaTeX with booktabs."""

from collections.abc import Iterable, Iterator, Sequence

from megatron_mep.reporting.tables import Grid, GridRow

MARKDOWN_SPECIAL = frozenset("\\`*_{}[]<>#|")
LATEX_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
}


def as_text(grids: Iterable[Grid]) -> str:
    """Tables for the terminal."""
    return "\n".join(_text_table(grid) for grid in grids)


def as_markdown(grids: Iterable[Grid]) -> str:
    """Tables for a Markdown file, the best of a column in bold."""
    return "\n".join(_markdown_table(grid) for grid in grids)


def as_latex(grids: Iterable[Grid]) -> str:
    r"""Tables to be read by `\input` in a document that loads booktabs, the best of a column in bold."""
    return "\n".join(_latex_table(grid) for grid in grids)


def _text_table(grid: Grid) -> str:
    head = [grid.corner, *grid.columns]
    rows = [[row.head if row.kind == "full" else f"  {row.head}", *row.cells] for row in grid.rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for first, *cells in [head, ["-" * width for width in widths], *rows]:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]))
    return "\n".join([grid.title, *grid.notes, "", *lines, ""])


def _markdown_table(grid: Grid) -> str:
    rows = [
        [_in_markdown(row.head) if row.kind == "full" else f"*{row.head}*", *_best(row, "**", "**", row.cells)]
        for row in grid.rows
    ]
    lines = [[grid.corner, *grid.columns], [":--", *("--:" for _ in grid.columns)], *rows]
    table = [f"| {' | '.join(cells)} |" for cells in lines]
    notes = [f"{_in_markdown(note)}\n" for note in grid.notes]
    return "\n".join([f"## {_in_markdown(grid.title)}\n", *notes, *table, ""])


def _latex_table(grid: Grid) -> str:
    body = [_latex_line(row) for row in grid.rows]
    caption = " ".join([f"{grid.title}.", *grid.notes])
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            f"  \\caption{{{_in_latex(caption)}}}",
            f"  \\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
            r"    \toprule",
            f"    {_latex_cells([_in_latex(grid.corner), *map(_in_latex, grid.columns)])}",
            r"    \midrule",
            *(f"    {line}" for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_line(row: GridRow) -> str:
    head = _in_latex(row.head) if row.kind == "full" else f"\\quad\\textit{{{_in_latex(row.head)}}}"
    return _latex_cells([head, *_best(row, r"\textbf{", "}", [_in_latex(cell) for cell in row.cells])])


def _latex_cells(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _best(row: GridRow, before: str, after: str, cells: Sequence[str]) -> Iterator[str]:
    """The cells, with a mark around the best."""
    for cell, best in zip(cells, row.best, strict=True):
        yield f"{before}{cell}{after}" if best else cell


def _in_markdown(text: str) -> str:
    """Text that Markdown shows as it is, inside a table too."""
    return "".join(f"\\{character}" if character in MARKDOWN_SPECIAL else character for character in text)


def _in_latex(text: str) -> str:
    """Text that LaTeX shows as it is."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)
