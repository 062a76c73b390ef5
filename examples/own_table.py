"""Train on a table of your own: clients and months come from its columns.

Run: python examples/own_table.py
"""

import csv
import datetime
import random
import tempfile
from pathlib import Path

from chronofed import Classification, CoreSet, Method, Mlp, Periods, Table, Train, run


def write_table(path: Path) -> None:
    """Write daily sales of three shops; a shop is busy on warm days and on Saturdays."""
    chance = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["shop", "date", "temperature", "weekday", "busy"])
        for shop in ("north", "south", "west"):
            for day in range(120):
                date = datetime.date(2024, 1, 1) + datetime.timedelta(day)
                temperature = round(chance.gauss(day / 10, 3), 1)
                busy = "yes" if temperature > 6 or date.weekday() == 5 else "no"
                rows.writerow([shop, date, temperature, f"{date:%a}", busy])


def main() -> None:
    """Train one model for all shops, two rounds a month, and print its accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shops.csv"
        write_table(path)
        table = Table(str(path), client="shop", time="date", target="busy", period="month")
        data = table.load(None, seed=0)

    scenario = Periods(rounds_per_period=2).on(data, seed=0)
    task = Classification(data, Mlp(hidden=(16,)))
    method = Method(memory=CoreSet(size=10))
    objective = task.objective()
    for snapshot in run(method, scenario, task, train=Train(lr=0.3, epochs=5)):
        score = task.score(objective, snapshot.params, snapshot.buffers, data.test)
        print(f"round {snapshot.round}: accuracy {score.accuracy:.2f}")


if __name__ == "__main__":
    main()
