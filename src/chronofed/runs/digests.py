"""Digests of a run's files, and of what it was trained with, in ``digests.json``.

The file carries a digest of itself. This module needs no torch: commands that only read runs import it, too.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from chronofed.core.atomic import write_atomic
from chronofed.core.errors import RunError
from chronofed.runs.json_files import read_bytes, read_json

NAME = "digests.json"


@dataclass(frozen=True, slots=True)
class Digests:
    """The content of ``digests.json``.

    Attributes:
        identity: What the run was trained with (:mod:`chronofed.runs.identity`).
        files: Digests of files that must not change any more, by name.
    """

    identity: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def changed(self, folder: Path, names: Iterable[str]) -> list[str]:
        """Return those of some files that have changed, or are missing; unknown files are left out."""
        return [n for n in names if n in self.files and file_digest(folder / n) != self.files[n]]

    def write(self, folder: Path) -> None:
        """Write the file."""
        content = {"identity": dict(self.identity), "files": dict(self.files)}
        table = content | {"digest": _own_digest(content)}
        write_atomic(folder / NAME, json.dumps(table, indent=2).encode() + b"\n")


def read_digests(folder: Path) -> Digests | None:
    """Read the digests of a run; ``None`` if it has none.

    Raises:
        RunError: If the file is damaged.
    """
    table = read_json(folder / NAME)
    if table is None:
        return None
    if table.pop("digest", None) != _own_digest(table):
        raise RunError(f"{folder / NAME} is damaged (it does not match its own digest); remove it")
    return msgspec.convert(table, Digests)


def file_digest(path: Path) -> str | None:
    """Hash a file; ``None`` if there is none."""
    content = read_bytes(path)
    return None if content is None else digest(content)


def digest(content: bytes) -> str:
    """Hash some bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _own_digest(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())
