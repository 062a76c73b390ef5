"""Encode columns: from the cells of a table to numbers, by a preparation that is fixed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.data.columns import Columns, missing
from chronofed.data.dataset import Codes
from chronofed.data.preparation import Feature

Tally = Counter[str]
"""Number of cells by what was done to them: ``marked``, ``unmarked`` (gaps) and ``other`` (unknown texts)."""


def encode_features(
    table: Columns, features: Sequence[Feature], place: Codes, tally: Tally | None = None
) -> NDArray[Any]:
    """Return all features of some rows, (n, d) or (n, ..., channels)."""
    blocks = [encode_feature(table, feature, place, tally) for feature in features]
    deep = [feature.name for feature, block in zip(features, blocks, strict=True) if block.ndim > 2]
    if deep and len(blocks) > 1:
        complaint = f"has {len(table[deep[0]].shape)} axes and must be the only feature"
        raise DataError(f"{table.path}: array {deep[0]!r} {complaint}")
    x = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=-1)
    if 0 in x.shape[1:]:
        names = ", ".join(feature.name for feature in features)
        raise DataError(f"{table.path}: features of shape {x.shape[1:]} hold no numbers: {names}")
    return x


def encode_feature(
    table: Columns, feature: Feature, place: Codes, tally: Tally | None = None
) -> NDArray[Any]:
    """Return one feature of some rows, (n, k) or (n, ..., channels)."""
    tally = Counter() if tally is None else tally
    if feature.text:
        return _one_hot(table, feature, place, tally)
    deep = len(table[feature.name].shape) > 1
    if not deep and feature.deviation == 0:
        # Always 0, whatever the cells hold.
        gaps = table.missing(feature.name)[place, None]
        return _with_marks(np.zeros(gaps.shape), gaps, feature, tally)
    values = table.tensor(feature.name) if deep else table.numbers(feature.name)[:, None]
    if deep and feature.plain and values.dtype == np.uint8:
        # Images stay bytes.
        return values[place]
    values = values[place].astype(np.float64)
    gaps = np.isnan(values)
    return _with_marks(_scaled(table, feature, values, gaps), gaps, feature, tally)


def encoded_names(features: Sequence[Feature], shape: tuple[int, ...]) -> tuple[str, ...]:
    """Name the numbers of a sample in their order; empty for images and windows, whose numbers have no names.

    >>> encoded_names([Feature("age", gaps=True), Feature("sex", categories=("f", "m"), other=True)], (5,))
    ('age', 'age is missing', 'sex = f', 'sex = m', 'sex is other')
    """
    if len(shape) != 1:
        return ()
    names = [name for feature in features for name in _names(feature)]
    if len(features) == 1 and len(names) != shape[0]:
        names = [f"{features[0].name}[{k}]" for k in range(shape[0])]
    return tuple(names) if len(names) == shape[0] else ()


def _names(feature: Feature) -> list[str]:
    name = feature.name
    values = [f"{name} = {each}" for each in feature.categories] if feature.text else [name]
    marks = [f"{name} is missing"] * bool(feature.gaps) + [f"{name} is other"] * feature.other
    return values + marks


def encode_labels(
    table: Columns, name: str, place: Codes, known: Sequence[str], what: str
) -> Codes:
    """Return the position of every cell in the list of known classes or categories."""
    return known_codes(table, name, place, table.text(name)[place], known, what)


def known_codes(
    table: Columns, name: str, place: Codes, cells: NDArray[Any], known: Sequence[str], what: str
) -> Codes:
    """Return the position of every text in the list of known ones; refuse another."""
    codes = _positions(cells, known)
    if (codes < 0).any():
        first = int(np.flatnonzero(codes < 0)[0])
        listed = ", ".join(cell for cell in known if cell)
        problem = f"{cells[first]!r} is not a known {what}: {listed}"
        raise table.cell_error(name, int(place[first]), problem)
    return codes


def _scaled(
    table: Columns, feature: Feature, values: NDArray[Any], gaps: NDArray[np.bool_]
) -> NDArray[np.float64]:
    mean, deviation = np.asarray(feature.mean), np.asarray(feature.deviation)
    fill = mean if feature.fill == () else np.asarray(feature.fill)
    channels = {each.size for each in (mean, deviation, fill) if each.ndim}
    if channels - {values.shape[-1]}:
        complaint = f"has {values.shape[-1]} channels, and is prepared for {channels.pop()}"
        raise DataError(f"{table.path}: array {feature.name!r} {complaint}")
    varied = deviation > 0
    scaled = (np.where(gaps, fill, values) - mean) / np.where(varied, deviation, 1)
    return np.where(varied, scaled, 0.0)


def _with_marks(
    values: NDArray[np.float64], gaps: NDArray[np.bool_], feature: Feature, tally: Tally
) -> NDArray[np.float32]:
    """Append a 0/1 channel for every channel whose gaps are marked."""
    every = np.arange(gaps.shape[-1])
    if isinstance(feature.gaps, bool):
        marked = np.full(len(every), feature.gaps)
    else:
        marked = np.isin(every, feature.gaps)
    marks = gaps[..., marked]
    tally["marked"] += int(marks.sum())
    tally["unmarked"] += int(gaps.sum() - marks.sum())
    return np.concatenate([values, marks], axis=-1, dtype=np.float32)


def _one_hot(table: Columns, feature: Feature, place: Codes, tally: Tally) -> NDArray[np.float32]:
    """Return a column for each category, then for gaps and for other texts, where these are wanted."""
    cells = table.text(feature.name)[place]
    width, empty = len(feature.categories), missing(cells)
    if feature.other:
        codes = _positions(cells, feature.categories)
    else:
        known = (*feature.categories, "")
        codes = known_codes(table, feature.name, place, cells, known, "category")
    codes = np.where(codes < 0, width + int(bool(feature.gaps)), codes)
    if feature.gaps or not feature.other:
        codes[empty] = width
    tally["marked" if feature.gaps else "unmarked"] += int(empty.sum())
    tally["other"] += int(((codes >= width) & ~empty).sum())
    columns = width + int(bool(feature.gaps)) + int(feature.other)
    return np.eye(max(columns, width + 1), columns, dtype=np.float32)[codes]


def _positions(cells: NDArray[Any], known: Sequence[str]) -> Codes:
    """Return the position of every text in a list; -1 if it is not in it."""
    position = {cell: code for code, cell in enumerate(known)}
    return np.fromiter((position.get(cell, -1) for cell in cells.tolist()), np.int64, len(cells))
