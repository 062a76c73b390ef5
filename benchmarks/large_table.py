"""Time and peak memory of a large table, in a process of its own.

Run: python benchmarks/large_table.py [--rows 10000000] [--readers arrow,plain] [--folder /tmp]

The table has 20 columns: a client, a time, a class, a category and 16 numbers of 6 digits. ``arrow`` reads with
pyarrow, ``plain`` with the standard library; ``read`` stops after reading, ``load`` makes the data set.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import json, resource, sys, time
from pathlib import Path
path, reader, step = sys.argv[1:]
import torch
from chronofed.data import readers
from chronofed.data.table import Table
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if reader == "plain":
    readers.LARGE_BYTES = 10**18
start = time.process_time()
table = Table(path, period="month", target="y")
result = table.read(None) if step == "read" else table.load(None, 0)
seconds = time.process_time() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"cpu_s": round(seconds, 1), "peak_gb": round(peak / 1e6, 2), "before_gb": round(base / 1e6, 2)}))
"""


def write(path: Path, rows: int) -> None:
    """Write hourly rows of 100 clients."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    chance = np.random.default_rng(0)
    names = pa.array([f"station {k:03}" for k in range(100)])
    schema, writer = None, None
    for start in range(0, rows, 500_000):
        place = np.arange(start, min(rows, start + 500_000))
        hours = np.datetime64("2010-01-01T00", "s") + (place // 100 * 3600).astype("m8[s]")
        columns = {
            "client": names.take(pa.array(place % 100)),
            "time": pa.array(hours.astype(str)),
            "y": pa.array(chance.integers(0, 2, len(place))),
            "wind": pa.array(["N", "E", "S", "W"]).take(
                pa.array(chance.integers(0, 4, len(place)))
            ),
            **{f"x{k}": np.round(chance.normal(size=len(place)), 5) for k in range(16)},
        }
        table = pa.table(columns)
        if writer is None:
            schema = table.schema
            writer = csv.CSVWriter(
                path, schema, write_options=csv.WriteOptions(quoting_style="none")
            )
        writer.write_table(table)
    writer.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=10_000_000)
    options.add_argument("--readers", default="arrow")
    options.add_argument("--steps", default="load")
    options.add_argument("--folder", type=Path, default=Path("/tmp"))
    chosen = options.parse_args()
    path = chosen.folder / f"large-{chosen.rows}.csv"
    if not path.exists():
        start = time.perf_counter()
        write(path, chosen.rows)
        print(f"wrote {path.stat().st_size / 1e9:.2f} GB in {time.perf_counter() - start:.0f} s")
    for reader in chosen.readers.split(","):
        for step in chosen.steps.split(","):
            command = [sys.executable, "-c", CHILD, str(path), reader, step]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
            if done.returncode:
                sys.exit(done.stderr)
            print(reader, step, json.loads(done.stdout))


if __name__ == "__main__":
    main()
