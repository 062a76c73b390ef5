"""Encode columns: from the cells of a table to numbers, by a preparation that is fixed."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.data.columns import Columns, missing
from chronofed.data.dataset import Codes
from chronofed.data.preparation import Feature

Tally = Counter[str]
"""Number of cells by what was done to them: ``marked``, ``unmarked`` (gaps) and ``other`` (unknown texts)."""
Encoder: TypeAlias = Callable[[Codes, Tally], NDArray[Any]]
_CHUNK = 2**16


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


def encode_parts(
    table: Columns, features: Sequence[Feature], parts: Sequence[Codes], tally: Tally
) -> list[NDArray[Any]]:
    """Return all features of several groups of rows, as :func:`encode_features` does.

    A column is read once and encoded some rows at a time, so that little more than the result is in memory.
    """
    none = np.zeros(0, dtype=np.int64)
    empty = encode_features(table, features, none)
    if empty.ndim > 2 or empty.dtype != np.float32:
        return [encode_features(table, features, part, tally) for part in parts]
    blocks = [np.empty((len(part), empty.shape[1]), np.float32) for part in parts]
    first = 0
    for feature in features:
        encode = _encoder(table, feature)
        last = first + encode(none, Counter()).shape[1]
        for part, block in zip(parts, blocks, strict=True):
            for start in range(0, len(part), _CHUNK):
                rows = slice(start, start + _CHUNK)
                block[rows, first:last] = encode(part[rows], tally)
        first = last
    return blocks


def encode_feature(
    table: Columns, feature: Feature, place: Codes, tally: Tally | None = None
) -> NDArray[Any]:
    """Return one feature of some rows, (n, k) or (n, ..., channels)."""
    return _encoder(table, feature)(place, Counter() if tally is None else tally)


def _encoder(table: Columns, feature: Feature) -> Encoder:
    """Read a column; return a function that encodes some of its rows."""
    if feature.text:
        return _one_hot(table, feature)
    deep = len(table[feature.name].shape) > 1
    if not deep and feature.deviation == 0:
        # Always 0, whatever the cells hold.
        empty = table.missing(feature.name)[:, None]
        return lambda place, tally: _with_marks(
            np.zeros((len(place), 1)), empty[place], feature, tally
        )
    column = table.tensor(feature.name) if deep else table.numbers(feature.name)[:, None]
    if deep and feature.plain and column.dtype == np.uint8:
        # Images stay bytes.
        return lambda place, tally: column[place]

    def scaled(place: Codes, tally: Tally) -> NDArray[Any]:
        values = column[place].astype(np.float64)
        gaps = np.isnan(values)
        return _with_marks(_scaled(table, feature, values, gaps), gaps, feature, tally)

    return scaled


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


def _one_hot(table: Columns, feature: Feature) -> Encoder:
    """Return a column for each category, then for gaps and for other texts, where these are wanted."""
    held = table.coded(feature.name)
    texts = held.texts()
    empty, width = missing(texts), len(feature.categories)
    known = _positions(texts, feature.categories)
    rest = width + int(bool(feature.gaps))
    columns = rest + int(feature.other)
    code = np.where(known < 0, rest, known)
    if feature.gaps or not feature.other:
        code[empty] = width
    rows = np.eye(max(columns, width + 1), columns, dtype=np.float32)

    def encode(place: Codes, tally: Tally) -> NDArray[Any]:
        cells = held.codes[place]
        if not feature.other and (strange := (known < 0) & ~empty)[cells].any():
            first = int(np.flatnonzero(strange[cells])[0])
            raise _unknown(table, feature.name, int(place[first]), texts[cells[first]], feature)
        tally["marked" if feature.gaps else "unmarked"] += int(empty[cells].sum())
        tally["other"] += int(((code >= width) & ~empty)[cells].sum())
        encoded: NDArray[Any] = rows[code[cells]]
        return encoded

    return encode


def _unknown(table: Columns, name: str, row: int, cell: str, feature: Feature) -> DataError:
    listed = ", ".join(feature.categories)
    return table.cell_error(name, row, f"{cell!r} is not a known category: {listed}")


def _positions(cells: NDArray[Any], known: Sequence[str]) -> Codes:
    """Return the position of every text in a list; -1 if it is not in it."""
    position = {cell: code for code, cell in enumerate(known)}
    return np.fromiter((position.get(cell, -1) for cell in cells.tolist()), np.int64, len(cells))
