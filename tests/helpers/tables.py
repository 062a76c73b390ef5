"""A small table in a file: four clients, a row each at every time, classes that drift."""

import csv
import random
from pathlib import Path

TIMES, CLIENTS = 60, 4


def write_table(
    folder: Path, name: str = "rows.csv", until: int = TIMES, poison: int | None = None
) -> Path:
    """Write the rows before a time; from ``poison`` on with outliers, new categories and shuffled labels."""
    chance, path = random.Random(0), folder / name
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["client", "time", "size", "kind", "y"])
        for time in range(TIMES):
            for client in range(CLIENTS):
                size, kind = chance.gauss(0, 1), chance.choice("ab")
                y = int(size + (kind == "a") + (time - 30) / 30 + chance.gauss(0, 0.5) > 0.5)
                if poison is not None and time >= poison:
                    size, kind, y = 30 * size, f"new {time}", chance.randrange(2)
                if time < until:
                    rows.writerow([f"c{client}", time, size, kind, y])
    return path
