"""Table of clients and the global models that they followed, and since when."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

MOST_CLIENTS = 20
"""Clients that a terminal shows; a page shows more."""
LATEST_CHANGES = 4
"""Latest changes that a line shows."""

Changes: TypeAlias = list[tuple[int, int]]
"""Rounds and the models that were followed from then on; -1 is none."""


def followed(lines: Sequence[dict[str, Any]]) -> list[Changes]:
    """Return for each client the evaluations at which the model that it follows was another, with that model.

    Args:
        lines: The run's record ``clusters``: a line for every evaluation. Clients may join.
    """
    found: list[Changes] = [[] for _ in (lines[-1]["of"] if lines else ())]
    for line in lines:
        for changes, model in zip(found, line["of"], strict=False):
            if (changes[-1][1] if changes else -1) != model:
                changes.append((int(line["round"]), int(model)))
    return found


def followed_lines(lines: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> Iterator[str]:
    """Yield the models that are in use, and a line for each of the first clients."""
    found = followed(lines)
    if not found:
        return
    used = sorted({changes[-1][1] for changes in found if changes} - {-1})
    yield f"{', '.join(map(str, used)) or 'none'} followed at round {lines[-1]['round']}"
    for client, changes in enumerate(found[:MOST_CLIENTS]):
        name = names[client] if client < len(names) else client
        yield f"client {name}: {_told(changes)}"
    if len(found) > MOST_CLIENTS:
        yield f"and {len(found) - MOST_CLIENTS} more clients; see chronofed report or --json"


def _told(changes: Changes) -> str:
    shown = [
        f"{'none' if model < 0 else model} from round {round_}"
        for round_, model in changes[-LATEST_CHANGES:]
    ]
    earlier = ["..."] if len(changes) > LATEST_CHANGES else []
    return ", ".join(earlier + shown) or "none"
