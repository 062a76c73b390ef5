"""A client's own settings: where its data are. They stay on the client, apart from the experiment."""

import tomllib
from pathlib import Path

import msgspec

from chronofed.errors import SpecError
from chronofed.experiments.reader import read
from chronofed.sources import Source


def load_source(path: Path) -> Source:
    """The table ``[source]`` of a TOML file; a relative path in it counts from the file's folder.

    Raises:
        SpecError: If it cannot be read.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None
    if "source" not in content:
        raise SpecError(f"{path}: no table [source], which says where the client's data are")
    source: Source = read(content["source"], Source, "source")  # type: ignore[type-abstract] # one of its kinds
    place = path.absolute().parent / Path(source.path).expanduser()
    return msgspec.structs.replace(source, path=str(place))
