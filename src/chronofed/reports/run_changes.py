"""Changes of a list since a reader last asked, so that a thousand runs are sent once."""

import secrets
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


class Changes:
    """Counts the changes of rows that have an ``id``.

    >>> changes = Changes()
    >>> first = changes.since("", [{"id": "a", "round": 1}, {"id": "b", "round": 1}])
    >>> len(first["runs"]), first["whole"]
    (2, True)
    >>> later = changes.since(first["at"], [{"id": "a", "round": 2}])
    >>> later["runs"], later["gone"], later["whole"]
    ([{'id': 'a', 'round': 2}], ['b'], False)
    """

    def __init__(self) -> None:
        # A reader of an earlier server must not be told what changed here.
        self._name = secrets.token_hex(4)
        self._serial = 0
        self._rows: dict[str, tuple[int, Row]] = {}
        self._gone: dict[str, int] = {}

    def since(self, at: str, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the rows that changed after a point in time.

        Args:
            at: What an earlier answer had as ``at``; anything else asks for all.
            rows: All rows now.
        """
        self._take(rows)
        name, _, serial = at.partition("-")
        whole = name != self._name or not serial.isdecimal()
        after = -1 if whole else int(serial)
        return {
            "at": f"{self._name}-{self._serial}",
            "whole": whole,
            "runs": [row for changed, row in self._rows.values() if changed > after],
            "gone": [] if whole else [k for k, changed in self._gone.items() if changed > after],
        }

    def _take(self, rows: Sequence[Row]) -> None:
        now = {str(row["id"]): row for row in rows}
        fresh = {k: row for k, row in now.items() if self._rows.get(k, (0, None))[1] != row}
        gone = self._rows.keys() - now.keys()
        if fresh or gone:
            self._serial += 1
        self._rows |= {k: (self._serial, row) for k, row in fresh.items()}
        for k in gone:
            del self._rows[k]
            self._gone[k] = self._serial
        for k in fresh:
            self._gone.pop(k, None)
