"""Placeholder until the real one is merged."""

import json
import sqlite3
from pathlib import Path
from types import TracebackType

from chronofed import safefile
from chronofed.engines.lockers import about, assembled, named
from chronofed.protocol import Locker


class Vault:
    """One client's memory in one file."""

    def __init__(self, path: Path, budget: int | None = None) -> None:
        del budget
        self._base = sqlite3.connect(path)
        self._base.execute("create table if not exists v (k text primary key, o text, b blob)")

    def __enter__(self) -> "Vault":
        return self

    def __exit__(self, *_: TracebackType | object) -> None:
        self._base.close()

    def locker(self) -> Locker | None:
        """What was kept."""
        row = self._base.execute("select b from v where k='locker'").fetchone()
        if row is None:
            return None
        source = safefile.Bytes(row[0])
        rest, places = safefile.read_header(source)
        tensors = {n: safefile.read(source, p) for n, p in places.items()}
        return assembled(json.loads(rest["about"]), tensors)

    def reply(self, order: str) -> bytes | None:
        """The last reply, if it was to this order."""
        row = self._base.execute("select b from v where k='reply' and o=?", (order,)).fetchone()
        return None if row is None else bytes(row[0])

    def commit(self, order: str, reply: bytes, locker: Locker | None) -> None:
        """Keep both at once."""
        with self._base:
            self._base.execute("insert or replace into v values ('reply', ?, ?)", (order, reply))
            if locker is not None:
                rest = {"about": json.dumps(about(locker.kept))}
                blob = b"".join(safefile.save(dict(named(locker)), rest))
                self._base.execute(
                    "insert or replace into v values ('locker', ?, ?)", (order, blob)
                )
