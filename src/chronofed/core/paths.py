"""Paths that people type."""

from pathlib import Path

from chronofed.core.errors import DataError


def expand(path: str | Path) -> Path:
    """Replace a leading ``~`` or ``~user`` by the home folder.

    Raises:
        DataError: If there is no such user, or no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        first = Path(path).parts[0]
        msg = f"{path}: no home folder is known for {first}; write the whole path"
        raise DataError(msg) from None
