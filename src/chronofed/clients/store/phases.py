"""Phases of a client store: what the server has accepted, and what waits for it.

A client trains, stores its new state as *waiting*, and replies. The next order says which reply the server has
accepted last. Only then the waiting state becomes the client's state, or is dropped. Client and server agree,
whichever replies are lost, late or refused.
"""

import sqlite3
from dataclasses import dataclass

from chronofed.clients.store import codec
from chronofed.core.types import Record

NEVER = -1
"""Round of a client of which the server has not accepted anything."""
ACCEPTED, WAITING = 0, 1


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """The phases of an open client store; change them inside a transaction only.

    Attributes:
        database: Connection to the client store.
    """

    database: sqlite3.Connection

    def rounds(self) -> dict[int, int]:
        """Return the round of every phase that exists."""
        return dict(self.database.execute("SELECT phase, round FROM phase"))

    def latest(self) -> int | None:
        """Return the last phase with a state; ``None`` if there is none."""
        query = "SELECT max(phase) FROM phase WHERE state IS NOT NULL"
        found: int | None = self.database.execute(query).fetchone()[0]
        return found

    def of_order(self, accepted: int) -> int | None:
        """Return the phase to work from when the server says what it has accepted last.

        Neither fits if one side was restored from a backup. Then a later state is the better one: a waiting
        reply was probably accepted if the server has gone on since, and what was accepted cannot be undone.
        """
        rounds = self.rounds()
        if WAITING in rounds and accepted >= rounds[WAITING]:
            return WAITING
        return ACCEPTED if ACCEPTED in rounds else None

    def state(self, phase: int) -> tuple[bytes, bytes] | None:
        """Return digest and content of a phase's state; ``None`` if it has none."""
        query = "SELECT digest, content FROM state JOIN phase ON number = state WHERE phase = ?"
        found: tuple[bytes, bytes] | None = self.database.execute(query, [phase]).fetchone()
        return found

    def settle(self, phase: int | None) -> None:
        """Accept what waits if the next order works from it; otherwise drop it."""
        execute = self.database.execute
        if phase == WAITING:
            (state,) = execute("SELECT state FROM phase WHERE phase = 1").fetchone()
            if state is not None:
                execute("DELETE FROM item WHERE phase = 0")
                execute("UPDATE item SET phase = 0")
            kept = "SELECT coalesce(max(state), ?) FROM phase WHERE phase = 0"
            state = execute(kept, [state]).fetchone()[0] if state is None else state
            (round_,) = execute("SELECT round FROM phase WHERE phase = 1").fetchone()
            execute("DELETE FROM phase")
            execute("INSERT INTO phase VALUES (0, ?, ?)", [round_, state])
        else:
            execute("DELETE FROM item WHERE phase = 1")
            execute("DELETE FROM phase WHERE phase = 1")
        self.remove_unused()

    def write(self, phase: int, round_: int, state: Record | None) -> None:
        """Write a phase; a state that is stored already is not written again."""
        number = None if state is None else self._number(state)
        self.database.execute(
            "INSERT OR REPLACE INTO phase VALUES (?, ?, ?)", [phase, round_, number]
        )
        self.remove_unused()

    def replace_state(self, phase: int, state: Record) -> None:
        """Replace the state of a phase."""
        update = "UPDATE phase SET state = ? WHERE phase = ?"
        self.database.execute(update, [self._number(state), phase])
        self.remove_unused()

    def remove_unused(self) -> None:
        """Remove states that no phase refers to; like replies, they are not overwritten."""
        self.database.execute("PRAGMA secure_delete = OFF")
        unused = "SELECT state FROM phase WHERE state IS NOT NULL"
        self.database.execute(f"DELETE FROM state WHERE number NOT IN ({unused})")
        self.database.execute("PRAGMA secure_delete = ON")

    def _number(self, state: Record) -> int:
        content = codec.encode(state)
        digest = codec.digest(content)
        found = self.database.execute(
            "SELECT number FROM state WHERE digest = ?", [digest]
        ).fetchone()
        if found is not None:
            return int(found[0])
        insert = "INSERT INTO state (digest, content) VALUES (?, ?) RETURNING number"
        return int(self.database.execute(insert, [digest, content]).fetchone()[0])
