"""The samples that clients keep as a figure: a row for each client, with samples of its latest data sets.

Samples are arrays, or anything that NumPy can convert, so that torch is not needed here.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import SpecError
from chronofed.core.names import Names
from chronofed.reports.figures import canvas
from chronofed.reports.figures.canvas import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from chronofed.clients.state import ClientState

# Data sets shown of a client.
SETS = 3
# Rows of one figure.
MOST_CLIENTS = 24

_PURPOSE = "drawing samples"
# Inches: a sample; a client with its samples and the names of their classes; names of clients; the top.
_TILE = 0.62
_LINE = 0.95
_SIDE = 0.8
# A letter of a client's name.
_LETTER = 0.07
_HEAD = 0.35


@dataclass(frozen=True, slots=True)
class DataSetSamples:
    """Some samples of one data set.

    Attributes:
        round: The round in which it was seen last.
        images: The samples ``(n, channels, height, width)``.
        labels: Their classes, or scaled numbers, ``(n,)``.
        key: Identifies the data set.
    """

    round: int
    images: NDArray[Any]
    labels: NDArray[np.int64] | NDArray[np.float32]
    key: int = 0


def check_picture(path: str | os.PathLike[str], shape: Sequence[int]) -> None:
    """Refuse what cannot be drawn, before any work is done.

    Args:
        path: Where the picture is to be.
        shape: Shape of one sample.

    Raises:
        SpecError: If the samples are no images, or the file's ending is unknown.
        StorageError: If there is no such folder.
        MissingExtraError: If matplotlib is not installed.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        msg = f"cannot draw samples of shape {tuple(shape)}: only images, (1 or 3, height, width)"
        raise SpecError(msg)
    canvas.check(path, _PURPOSE)


def draw_samples(
    client_states: "Mapping[int, ClientState]",
    path: str | os.PathLike[str],
    classes: Sequence[str] = (),
    per_client: int = 12,
    names: Names | None = None,
) -> Path:
    """Draw the samples that clients keep: a row for each client, its latest data sets from left to right.

    Args:
        client_states: The clients' states (:attr:`chronofed.training.loop.Snapshot.client_states`).
        path: The file to write; the ending chooses PNG, SVG or PDF.
        classes: Names of the classes; by default their numbers.
        per_client: Samples of a client, shared by its latest data sets, of which there are at most three.
        names: The names of clients and periods; by default clients have numbers.

    Returns:
        The path.

    Raises:
        SpecError: If no client keeps any samples, or they are no images.
    """
    rows: dict[int, list[DataSetSamples]] = {}
    total = 0
    # One client state at a time: they may not all fit into memory.
    for client in sorted(client_states):
        groups = latest(client_states[client], per_client)
        total += bool(groups)
        if groups and len(rows) < MOST_CLIENTS:
            rows[client] = groups
    if not rows:
        raise SpecError("nothing to draw: no client keeps any samples")
    first = next(iter(rows.values()))[0]
    check_picture(path, first.images.shape[1:])
    each = max(1, per_client // SETS)
    return canvas.save(_figure(rows, total, classes, each, names or Names()), path)


def latest(client_state: "ClientState", most: int) -> list[DataSetSamples]:
    """Choose at most ``most`` samples of the latest data sets that a client keeps samples of."""
    kept = [item for item in client_state.items if {"x", "y"} <= set(item.record)]
    newest = sorted(kept, key=lambda item: -item.round)[:SETS]
    each = max(1, most // SETS)
    return [
        DataSetSamples(
            k.round, np.asarray(k.record["x"])[:each], np.asarray(k.record["y"])[:each], k.key
        )
        for k in newest[:most]
    ]


def _figure(
    shown: dict[int, list[DataSetSamples]],
    total: int,
    classes: Sequence[str],
    each: int,
    names: Names,
) -> "Figure":
    """Draw the rows; a note says so if there was no room for all clients."""
    width = SETS * (each + 0.5)
    side = max(_SIDE, 0.3 + _LETTER * max(len(names.client(client)) for client in shown))
    size = (side + width * _TILE, _HEAD + len(shown) * _LINE)
    drawn = canvas.new_figure(size, _PURPOSE, layout=None)
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set_xlim(-side / _TILE, width)
    axes.set_ylim(len(shown) * _LINE / _TILE, -_HEAD / _TILE)
    axes.set_axis_off()
    low, high = _range(shown)
    for line, (client, groups) in enumerate(shown.items()):
        top = line * _LINE / _TILE
        about: dict[str, Any] = {"color": INK, "parse_math": False}
        axes.text(
            -0.2, top + 0.5, names.client(client), ha="right", va="center", fontsize=8, **about
        )
        for place, group in enumerate(groups):
            corner = (place * (each + 0.5), top)
            when = f"round {group.round}" + (
                f", {names.data_set(group.key)}" if group.key < len(names.periods) else ""
            )
            axes.text(corner[0], top - 0.06, when, fontsize=6, va="bottom", **about)
            _draw_group(axes, group, corner, (low, high), classes)
    # imshow has changed the aspect.
    axes.set_aspect("equal")
    if total > len(shown):
        note = f"the first {len(shown)} of {total} clients"
        axes.text(width - 0.5, -0.3, note, ha="right", color=INK, fontsize=8)
    return drawn


def _draw_group(
    axes: "Axes",
    group: DataSetSamples,
    corner: tuple[float, float],
    limits: tuple[float, float],
    classes: Sequence[str],
) -> None:
    """Draw samples side by side, and their classes below."""
    left, top = corner
    for number, (image, label) in enumerate(zip(_pixels(group, limits), group.labels, strict=True)):
        edges = (left + number + 0.03, left + number + 0.97, top + 0.97, top + 0.03)
        axes.imshow(image, extent=edges, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        # Numbers of a regression, and classes without names, are shown themselves.
        name = classes[label] if len(classes) else f"{label:.6g}"
        axes.text(
            left + number + 0.5,
            top + 1.03,
            name,
            ha="center",
            va="top",
            fontsize=5,
            color=INK,
            # A "$" in a name is a "$".
            parse_math=False,
        )


def _pixels(group: DataSetSamples, limits: tuple[float, float]) -> Iterator[NDArray[np.float64]]:
    """Yield images with numbers in [0, 1]: ``(height, width)`` in grey, ``(height, width, 3)`` in colour."""
    low, high = limits
    for image in group.images:
        scaled = np.clip((image.astype(np.float64) - low) / max(high - low, 1e-12), 0, 1)
        yield scaled[0] if len(scaled) == 1 else np.moveaxis(scaled, 0, -1)


def _range(rows: dict[int, list[DataSetSamples]]) -> tuple[float, float]:
    """Return the range of the pixels: all of a byte, or of other numbers those that occur."""
    images = [group.images for groups in rows.values() for group in groups]
    if images[0].dtype == np.uint8:
        return 0.0, 255.0
    return float(min(x.min() for x in images)), float(max(x.max() for x in images))
