"""The client's own settings file, which says where its data are. It stays on the client."""

import tomllib
from pathlib import Path

import msgspec

from chronofed.core.errors import SpecError
from chronofed.core.paths import expand
from chronofed.core.spec_io import from_table
from chronofed.data.client_source import Source


def load_source(path: Path) -> Source:
    """Read the table ``[source]`` of a TOML file; a relative path in it starts at the file's folder.

    Raises:
        SpecError: If the file cannot be read.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None
    if "source" not in content:
        raise SpecError(f"{path}: no table [source], which says where the client's data are")
    # The result is of one of the concrete kinds.
    source: Source = from_table(content["source"], Source, "source")  # type: ignore[type-abstract]
    place = path.absolute().parent / expand(source.path)
    return msgspec.structs.replace(source, path=str(place))
