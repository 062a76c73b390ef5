"""Read Parquet files with pyarrow, and folders of them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chronofed.core.errors import DataError, MissingExtraError
from chronofed.data.cells import cleaned
from chronofed.data.columns import Categorical, Columns
from chronofed.data.csv_files import check_header
from chronofed.data.limits import check_bytes, check_columns
from chronofed.data.npz import first_line


def read_parquet(path: Path, missing: frozenset[str]) -> Columns:
    """Read a Parquet file, or all those of a folder in the order of their paths."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "reading Parquet") from None
    files = _parquet_files(path) if path.is_dir() else [path]
    parts = [_parquet_table(file, path) for file in files]
    try:
        table = pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        complaint = f"its files have different columns ({first_line(error)})"
        raise DataError(f"{path}: {complaint}") from None
    return from_arrow(path, table, missing)


def from_arrow(path: Path, table: Any, missing: frozenset[str]) -> Columns:
    """Convert a table of pyarrow."""
    import pyarrow as pa

    names = check_header(path, table.column_names)
    held = {}
    for name, column in zip(names, table.columns, strict=True):
        held[name] = _from_arrow(column, pa, missing)
    zoned = {name for name, kind in zip(names, table.schema.types, strict=True) if _zone(kind)}
    return Columns(path, held, zoned=frozenset(zoned))


def _zone(kind: Any) -> str | None:
    return getattr(kind, "tz", None)


def _parquet_files(folder: Path) -> list[Path]:
    """List the files below a folder, but for hidden ones and those that other tools leave behind."""
    found = [
        file
        for file in sorted(folder.rglob("*.parquet"))
        if file.is_file() and not any(part[0] in "._" for part in file.relative_to(folder).parts)
    ]
    if not found:
        raise DataError(f"{folder}: no .parquet files in this folder")
    return found


def _parquet_table(file: Path, root: Path) -> Any:
    """Read a file; folders such as ``year=2013`` between it and the root are columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not a path: pyarrow would look for keys in folders above the root as well.
        with file.open("rb") as content, pq.ParquetFile(content) as parquet:
            # A column of one value takes no room in the file.
            check_columns(file, parquet.metadata.num_columns)
            check_bytes(file, 8 * parquet.metadata.num_rows * parquet.metadata.num_columns)
            table = parquet.read()
    except (pa.ArrowException, MemoryError) as error:
        raise DataError(f"{file}: not a Parquet file ({first_line(error)})") from None
    for folder in file.relative_to(root).parts[:-1]:
        name, equals, value = folder.partition("=")
        if equals and name not in table.column_names:
            table = table.append_column(name, pa.array([value] * len(table), pa.string()))
    return table


def _from_arrow(column: Any, pa: Any, missing: frozenset[str]) -> NDArray[Any] | Categorical:
    """Convert a column; values of other types become ``None``, which is an error on use."""
    is_a, kind = pa.types, column.type
    if is_a.is_dictionary(kind):
        return _from_arrow(column.cast(kind.value_type), pa, missing)
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        coded = column.fill_null("").combine_chunks().dictionary_encode()
        distinct = [cleaned(cell, missing) for cell in coded.dictionary.to_pylist()]
        return Categorical(distinct, coded.indices.to_numpy().astype(np.int64))
    if is_a.is_timestamp(kind) or is_a.is_date(kind):
        column = column.cast(pa.timestamp("us", _zone(kind)), safe=False)
    elif is_a.is_boolean(kind) or is_a.is_decimal(kind):
        column = column.cast(pa.int8() if is_a.is_boolean(kind) else pa.float64())
    elif not (is_a.is_integer(kind) or is_a.is_floating(kind)):
        return np.full(len(column), None, dtype=object)
    return np.asarray(column.to_numpy())
