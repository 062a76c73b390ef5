"""Files of predictions: CSV, JSON lines and Parquet."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import isnan
from typing import Any

import numpy as np

from chronofed.core.errors import MissingExtraError
from chronofed.models.prediction import Cells, Part, Prediction

DIGITS = 9
"""Significant digits of a number in text: as many as a float32 needs."""


def encode_csv(prediction: Prediction) -> Iterator[bytes]:
    """Encode predictions as CSV, with a header."""
    yield _csv_lines([prediction.header])
    for part in prediction.parts():
        yield _csv_lines(zip(*(_texts(part[name]) for name in prediction.header), strict=True))


def encode_jsonl(prediction: Prediction) -> Iterator[bytes]:
    """Encode predictions as a JSON object in each line."""
    for part in prediction.parts():
        columns = (_plain(part[name]) for name in prediction.header)
        rows = (
            dict(zip(prediction.header, row, strict=True)) for row in zip(*columns, strict=True)
        )
        yield "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def encode_parquet(prediction: Prediction) -> Iterator[bytes]:
    """Encode predictions as Parquet, a group of rows for each part.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "writing Parquet") from None
    found = prediction.parts()
    first = _arrow(next(found), pa)
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, first.schema) as writer:
        for table in chain([first], (_arrow(part, pa) for part in found)):
            writer.write_table(table)
    yield buffer.getvalue()


ENCODERS: dict[str, Callable[[Prediction], Iterator[bytes]]] = {
    "csv": encode_csv,
    "jsonl": encode_jsonl,
    "parquet": encode_parquet,
}
"""Encoders by the extension of a file."""


def _arrow(part: Part, pa: Any) -> Any:
    """Make a table whose columns have the same types whether it has rows or not."""
    columns = {
        # A NaN is no prediction: null.
        name: pa.array(cells, from_pandas=True)
        if isinstance(cells, np.ndarray)
        else pa.array(cells, pa.string())
        for name, cells in part.items()
    }
    return pa.table(columns)


def _csv_lines(rows: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _texts(cells: Cells) -> Sequence[str]:
    if not isinstance(cells, np.ndarray):
        return cells
    return ["" if isnan(number) else f"{number:.{DIGITS}g}" for number in cells.tolist()]


def _plain(cells: Cells) -> Sequence[Any]:
    if not isinstance(cells, np.ndarray):
        return cells
    return [float(text) if text else None for text in _texts(cells)]
