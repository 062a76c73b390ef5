"""Features and classes: how the cells of a column become numbers.

The numbers of a row must not depend on the other rows: server and clients have to agree on them. So classes,
categories, means and deviations are settings, and are never computed from the data.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.config import Config, Positive
from chronofed.core.errors import DataError
from chronofed.data.client_source.client_data import Numbers
from chronofed.data.columns import Columns


class Feature(Config):
    """A column that is used as a feature.

    Attributes:
        name: Name of the column.
        mean: Subtracted from every number; a gap becomes 0.
        deviation: Every number is divided by it.
        categories: For text: one 0/1 column for each category; all are 0 for a gap.
        gaps: Add a 0/1 column that marks gaps.
    """

    name: str
    mean: float = 0.0
    deviation: Positive = 1.0
    categories: tuple[str, ...] = ()
    gaps: bool = False


def encode_feature(table: Columns, feature: Feature, place: Numbers) -> NDArray[Any]:
    """Return one feature of some rows, (n, k) or (n, ..., channels)."""
    if feature.categories:
        return _one_hot(table, feature, place)
    deep = len(table[feature.name].shape) > 1
    values = (table.tensor if deep else table.values)(feature.name)[place]
    if values.dtype.kind not in "biuf":
        dates = values.dtype.kind == "M"
        kind, advice = ("dates", "leave it out") if dates else ("text", "list its categories")
        raise DataError(f"{table.path}: feature {feature.name!r} contains {kind}; {advice}")
    plain = (feature.mean, feature.deviation, feature.gaps) == (0.0, 1.0, False)
    if deep and plain and values.dtype == np.uint8:
        # Images stay bytes.
        return values
    values = (values if deep else values[:, None]).astype(np.float64)
    gaps = np.isnan(values)
    scaled = np.where(gaps, 0.0, (values - feature.mean) / feature.deviation)
    blocks = [scaled, gaps] if feature.gaps else [scaled]
    return np.concatenate(blocks, axis=-1, dtype=np.float32)


def _one_hot(table: Columns, feature: Feature, place: Numbers) -> NDArray[np.float32]:
    width = len(feature.categories)
    codes = encode_labels(table, feature.name, place, (*feature.categories, ""), "category")
    block = np.eye(width + 1, width + 1, dtype=np.float32)[codes]
    return block if feature.gaps else block[:, :width]


def encode_labels(
    table: Columns, name: str, place: Numbers, known: Sequence[str], what: str
) -> Numbers:
    """Return the position of every cell in the list of known classes or categories."""
    position = {cell: code for code, cell in enumerate(known)}
    cells = table.text(name)[place]
    codes = np.fromiter((position.get(cell, -1) for cell in cells), np.int64, len(cells))
    if (codes < 0).any():
        first = int(np.flatnonzero(codes < 0)[0])
        listed = ", ".join(cell for cell in known if cell)
        problem = f"{cells[first]!r} is not a known {what}: {listed}"
        raise table.cell_error(name, int(place[first]), problem)
    return codes
