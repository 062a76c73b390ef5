#!/usr/bin/env python3
"""Bit-for-bit fingerprints of runs. Standard library only: it imports nothing of chronofed, torch or numpy.

    python bits.py SPECS CHRONOFED OUT.json [--only NAME ...] [--again] [--data FOLDER] [--cores N]
    python bits.py --compare BEFORE.json AFTER.json [--names NAMES.json]

SPECS: a folder of *.toml; CHRONOFED: the executable. Every spec is carried out into a temporary folder with one
thread and (by affinity) one core. OUT.json: spec name -> fingerprint; canonical records are kept beside it in
OUT.records/NAME.{metrics,periods,weights}. Written after every spec; what is there already is skipped unless --again.

A fingerprint has:
    params       sha256 of the raw bytes of the server's parameters in the last checkpoint
    buffers      the same of the model's buffers
    state        sha256 over all tensors of the last checkpoint (lockers, past, weights too), without their names
    metrics      sha256 of the canonical metrics.jsonl (time and host keys dropped, keys sorted): depends on key names
    values       the same without names: the sorted numbers of each line
    periods, weights   sha256 of the other two records, names dropped the same way (nested values flattened)
    figures      best5, last, anytime, forgetting; and the rest of summary.json, time dropped
--compare ignores key names unless a map {"old metric": "new metric"} is given with --names; then names are checked too.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What a new tree may have renamed: candidates, the first that is found counts.
COMMAND = ["run", "{spec}", "-q", "-o", "{run}"]
ENVIRONMENT = {"CHRONOFED_DATA": "{data}"}
CHECKPOINTS = ["checkpoints/*.safetensors"]
PARAMS = ["server/params", "server/x", "server/model", "server/w"]
BUFFERS = ["model/buffers", "server/buffers", "buffers"]
METRICS, PERIODS, WEIGHTS = (
    ["metrics.jsonl"],
    ["periods.jsonl", "period_accuracy.jsonl"],
    ["weights.jsonl", "round_weights.jsonl"],
)
SUMMARY = ["summary.json"]
DROPPED = re.compile(r"second|time_s|wall|clock|host|machine|duration|elapsed", re.IGNORECASE)
FIGURES = {
    "best5": ["best5", "best_5"],
    "last": ["last"],
    "anytime": ["anytime"],
    "forgetting": ["last_forgetting", "forgetting"],
}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def first(run: Path, patterns: list[str]) -> Path | None:
    for pattern in patterns:
        if found := sorted(run.glob(pattern)):
            return found[-1]
    return None


def tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length :]
    return {
        n: (i["dtype"], i["shape"], data[i["data_offsets"][0] : i["data_offsets"][1]])
        for n, i in header.items()
    }


def plain(value: object) -> object:
    """Without keys that tell of time or machine, keys sorted."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in sorted(value.items()) if not DROPPED.search(k)}
    return [plain(v) for v in value] if isinstance(value, list) else value


def numbers(value: object) -> list[str]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in numbers(v)]
    # 5 and 5.0 are the same number; strings and None count as what they are
    if isinstance(value, bool) or not isinstance(value, int | float):
        return [json.dumps(value)]
    return [repr(float(value))]


def record(path: Path | None) -> tuple[str, str]:
    """Canonical text, and the same without names."""
    if path is None:
        return "", ""
    lines = [plain(json.loads(line)) for line in path.read_text().splitlines()]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return text, "".join(" ".join(sorted(numbers(line))) + "\n" for line in lines)


def fingerprint(run: Path, beside: Path, name: str) -> dict[str, object]:
    checkpoint = first(run, CHECKPOINTS)
    held = tensors(checkpoint) if checkpoint else {}
    found: dict[str, object] = {}
    for key, names in (("params", PARAMS), ("buffers", BUFFERS)):
        at = next((n for n in names if n in held), None)
        found[key] = (
            sha(held[at][2])
            if at
            else f"none of {names}; there are {[n for n in held if '/' not in n or n.startswith('server')]}"
        )
        if at and key == "params":
            found["params_shape"] = [held[at][0], *held[at][1]]
    every = sorted(f"{d} {s} {sha(b)}" for d, s, b in held.values())
    found["state"], found["tensors"] = sha("\n".join(every).encode()), len(every)
    for key, files in (("metrics", METRICS), ("periods", PERIODS), ("weights", WEIGHTS)):
        text, bare = record(first(run, files))
        (beside / f"{name}.{key}").write_text(text)
        if key == "metrics":
            found["metrics"], found["values"] = sha(text.encode()), sha(bare.encode())
        else:
            found[key] = sha(bare.encode()) if bare else ""
    path = first(run, SUMMARY)
    summary = plain(json.loads(path.read_text())) if path else {}
    found["figures"] = {
        k: next((summary[n] for n in names if n in summary), None) for k, names in FIGURES.items()
    }
    found["summary"] = summary
    return found


def carry_out(options: argparse.Namespace, spec: Path) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="bits-") as folder:
        run = Path(folder) / "run"
        fill = {"spec": str(spec), "run": str(run), "data": options.data}
        command = [options.chronofed, *(word.format(**fill) for word in COMMAND)]
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            **{k: v.format(**fill) for k, v in ENVIRONMENT.items()},
        }
        cores = sorted(os.sched_getaffinity(0))[-options.cores :]
        start = time.perf_counter()
        done = subprocess.run(
            command,
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            return {"error": (done.stderr or done.stdout)[-2000:], "seconds": round(seconds, 1)}
        if options.keep:
            shutil.copytree(run, Path(options.keep) / spec.stem, dirs_exist_ok=True)
        beside = options.out.with_suffix(".records")
        beside.mkdir(exist_ok=True)
        return {**fingerprint(run, beside, spec.stem), "seconds": round(seconds, 1)}


def compare(before: Path, after: Path, names: Path | None) -> int:
    old, new = (json.loads(p.read_text()) for p in (before, after))
    rename = json.loads(names.read_text()) if names else None
    bad = 0
    for name in sorted(old):
        if name not in new:
            print(f"{name}: missing")
            bad += 1
            continue
        one, two = old[name], new[name]
        keys = [
            "error",
            "params",
            "params_shape",
            "buffers",
            "values",
            "periods",
            "weights",
            "state",
        ]
        differ = [k for k in keys if one.get(k) != two.get(k)]
        if [v for v in one.get("figures", {}).values()] != [
            v for v in two.get("figures", {}).values()
        ]:
            differ.append("figures")
        if rename is not None and not differ:
            text = (before.with_suffix(".records") / f"{name}.metrics").read_text()
            lines = [
                plain({rename.get(k, k): v for k, v in json.loads(x).items()})
                for x in text.splitlines()
            ]
            there = (after.with_suffix(".records") / f"{name}.metrics").read_text()
            if lines != [json.loads(x) for x in there.splitlines()]:
                differ.append("names")
        hard = [k for k in differ if k != "state"]
        bad += bool(hard)
        print(
            f"{name}: {'same' if not differ else 'DIFFERS: ' + ', '.join(differ) if hard else 'same but for: state'}"
        )
    print(f"{bad} of {len(old)} differ")
    return 1 if bad else 0


def main() -> int:
    if sys.argv[1:2] == ["--compare"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--compare", action="store_true")
        parser.add_argument("before", type=Path)
        parser.add_argument("after", type=Path)
        parser.add_argument("--names", type=Path)
        o = parser.parse_args()
        return compare(o.before, o.after, o.names)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", type=Path)
    parser.add_argument("chronofed")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--keep", help="a folder that keeps the runs")
    parser.add_argument("--data", default=os.environ.get("CHRONOFED_DATA", ""))
    parser.add_argument("--cores", type=int, default=1)
    options = parser.parse_args()
    options.chronofed = os.path.abspath(options.chronofed)
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    failed = 0
    for spec in sorted(
        options.specs.resolve().glob("*.toml"),
        key=lambda p: (not p.stem.startswith("mini"), p.stem),
    ):
        if options.only and spec.stem not in options.only:
            continue
        if not options.again and "params" in found.get(spec.stem, {}):
            continue
        result = found[spec.stem] = carry_out(options, spec)
        failed += "error" in result
        options.out.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
        print(
            spec.stem,
            result["seconds"],
            "s",
            result.get("error", result.get("figures", "")),
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
