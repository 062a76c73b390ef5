"""Join the columns of several files: rows that came later are in a file of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError
from chronofed.data.columns import Categorical, Columns


@dataclass(frozen=True, slots=True)
class _Joined(Columns):
    """Columns of several files, one below the other; a message names the file of its row.

    Attributes:
        parts: The columns of the single files.
        ends: Number of rows up to the end of each file.
    """

    parts: tuple[Columns, ...] = ()
    ends: tuple[int, ...] = ()

    def cell_error(self, name: str, row: int, complaint: str) -> DataError:
        """Return an error about one cell; ``row`` counts from 0."""
        number = next(k for k, end in enumerate(self.ends) if row < end)
        before = self.ends[number - 1] if number else 0
        return self.parts[number].cell_error(name, row - before, complaint)


def join(parts: Sequence[Columns]) -> Columns:
    """Put the rows of files with the same columns below each other.

    Raises:
        DataError: If a file has other columns, or of another type.
    """
    first, *others = parts
    if not others:
        return first
    for other in others:
        lacking = [name for name in first.arrays if name not in other.arrays]
        if lacking:
            raise DataError(f"{other.path}: no column {lacking[0]!r}, which {first.path} has")
    arrays = {name: _joined(name, parts) for name in first.arrays}
    ends = np.cumsum([part.rows(first.arrays) for part in parts]).tolist()
    untyped = any(part.untyped for part in parts)
    zoned = first.zoned.union(*(part.zoned for part in others))
    return _Joined(first.path, arrays, None, untyped, zoned, tuple(parts), tuple(ends))


def _joined(name: str, parts: Sequence[Columns]) -> NDArray[Any] | Categorical:
    held = [part[name] for part in parts]
    texts = [each for each in held if isinstance(each, Categorical)]
    arrays = [each for each in held if not isinstance(each, Categorical)]
    if texts and arrays:
        raise DataError(f"{parts[-1].path}: column {name!r} is text in one file and not in another")
    if texts:
        return _joined_texts(texts)
    if len({(each.shape[1:], each.dtype.kind == "M") for each in arrays}) > 1:
        raise DataError(
            f"{parts[-1].path}: column {name!r} has another type than in the first file"
        )
    return np.concatenate(arrays)


def _joined_texts(columns: Sequence[Categorical]) -> Categorical:
    place: dict[str, int] = {}
    codes = []
    for column in columns:
        new = [place.setdefault(text, len(place)) for text in column.distinct]
        codes.append(np.array(new, dtype=np.int64)[column.codes])
    return Categorical(list(place), np.concatenate(codes))
