"""Common to all figures: colours, formats, and a file that is written whole or not at all.

Matplotlib is imported only when something is drawn, and without pyplot: no global state changes, and no window
opens.
"""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chronofed.core.atomic import write_atomic
from chronofed.core.errors import MissingExtraError, SpecError, StorageError
from chronofed.reports.styles import COLOURS as COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
DPI = 160

COLUMNS = {1: 3.4, 2: 7.0}
"""Inches of one and of two columns of a paper."""

# Inches below which a panel is too low to read.
_LOWEST = 2.2

INK = "#3a3f47"
FAINT = "#9aa1ab"

_UNDATED: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def check(path: str | os.PathLike[str], purpose: str = "drawing") -> None:
    """Refuse what cannot be drawn, before any work is done.

    Args:
        path: The file to write.
        purpose: The reason why matplotlib is needed, for the message.

    Raises:
        SpecError: If the file's ending is unknown.
        StorageError: If there is no such folder.
        MissingExtraError: If matplotlib is not installed.
    """
    target = Path(path)
    if _format(target) not in FORMATS:
        msg = f"cannot draw '{target}': use a file ending of {', '.join('.' + f for f in FORMATS)}"
        raise SpecError(msg)
    if not target.absolute().parent.is_dir():
        raise StorageError(f"cannot write {target}: there is no folder {target.parent}; make it")
    _figure_type(purpose)


def new_figure(
    size: tuple[float, float],
    purpose: str = "drawing",
    layout: Literal["constrained"] | None = "constrained",
    columns: int | None = None,
) -> "Figure":
    """Make an empty white figure.

    Args:
        size: Width and height in inches.
        purpose: The reason why matplotlib is needed, for the message.
        layout: The layout engine; ``None`` to place axes by hand.
        columns: Columns of a paper that it fills, 1 or 2; by default it has its own size. Text keeps its size.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    if columns is not None:
        size = _fitted(size, COLUMNS[columns])
    return _figure_type(purpose)(figsize=size, layout=layout, facecolor="white")


def _fitted(size: tuple[float, float], width: float) -> tuple[float, float]:
    """Scale a size to a width, but no lower than can be read.

    >>> _fitted((4.4, 3.3), 3.4), _fitted((16.0, 3.4), 7.0)
    ((3.4, 2.55), (7.0, 2.2))
    """
    height = size[1] * width / size[0]
    return width, round(max(height, min(size[1], _LOWEST)), 4)


def save(figure: "Figure", path: str | os.PathLike[str]) -> Path:
    """Write a figure as PNG, SVG or PDF, by the file's ending; the same figure gives the same bytes.

    Raises:
        SpecError: If the file's ending is unknown.
        StorageError: If it cannot be written.
    """
    check(path)
    from matplotlib import rc_context

    target = Path(path)
    kind = _format(target)
    drawn = io.BytesIO()
    with rc_context({"svg.hashsalt": "chronofed"}):
        figure.savefig(drawn, format=kind, dpi=DPI, metadata=_UNDATED.get(kind))
    write_atomic(target, drawn.getvalue())
    return target


def _format(target: Path) -> str:
    return target.suffix[1:].lower()


def _figure_type(purpose: str) -> "type[Figure]":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", purpose) from None
    return Figure


def style_axes(axes: "Axes", below: str, beside: str, title: str) -> None:
    """Set labels, title and lines of a panel in the common style."""
    axes.set_xlabel(below, color=INK, fontsize=9)
    axes.set_ylabel(beside, color=INK, fontsize=9)
    axes.set_title(title, color=INK, fontsize=9)
    axes.tick_params(colors=INK, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
