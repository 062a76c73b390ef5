#!/usr/bin/env python3
"""Mutation testing of a copy of a tree.

    python run.py TREE OUT.jsonl [--mutants mutants.json] [--python .../bin/python] [--only ID ...] [--baseline]

Copies TREE (without .git, .venv, caches) to a scratch folder, and uses that copy's src by PYTHONPATH; TREE itself is only
read. Runs the union of all tests unmutated first (skipped if OUT.jsonl says it passed), then every mutant: replaces its old
text, runs its tests with -x, restores the file. One line of JSON a mutant is appended to OUT.jsonl: id, result (killed,
survived, timeout, broken: the old text is not there exactly once, or tests could not be collected), seconds, first
failure. The time limit is of CPU seconds (of each process), so that a busy machine does no harm. What is in OUT.jsonl already is skipped. One process at a time.
--summary prints what OUT.jsonl says.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = [
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
]
QUICK = ["-m", "not slow and not product and not corpus and not browser"]


def pytest(
    python: str, tree: Path, tests: list[str], timeout: float, extra=()
) -> tuple[int | None, str, float]:
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, "-m", "pytest", *FLAGS, *extra, *tests],
        cwd=tree,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_CPU, (int(timeout), int(timeout) + 5)
        ),
    )
    try:
        output, _ = process.communicate(timeout=6 * timeout)
        code = process.returncode if process.returncode >= 0 else None  # out of time
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        code = None
    return code, output, time.perf_counter() - start


def first(output: str) -> str:
    found = re.search(r"^(FAILED|ERROR) (.*)$", output, re.MULTILINE)
    return (
        found[0][:300] if found else output.strip().splitlines()[-1][:300] if output.strip() else ""
    )


def summary(out: Path) -> None:
    lines = [json.loads(x) for x in out.read_text().splitlines()]
    lines = {x["id"]: x for x in lines if x["id"] != "baseline"}.values()
    by = {}
    for line in lines:
        by.setdefault(line["result"], []).append(line["id"])
    print({k: len(v) for k, v in by.items()}, f"{sum(x['seconds'] for x in lines):.0f} s")
    for kind, ids in by.items():
        if kind != "killed":
            print(kind + ":", *ids)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mutants", type=Path, default=HERE / "mutants.json")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--timeout", type=float, default=180)
    parser.add_argument(
        "--baseline", action="store_true", help="only the union of tests, unmutated"
    )
    parser.add_argument("--no-baseline", action="store_true")
    parser.add_argument("--pages", action="store_true", help="tests of pages in a browser")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    markers = [] if options.pages else QUICK
    if options.summary:
        summary(options.out)
        return 0
    mutants = json.loads(options.mutants.read_text())
    if options.only:
        mutants = [x for x in mutants if x["id"] in options.only]
    done = {}
    if options.out.exists():
        done = {x["id"]: x for x in map(json.loads, options.out.read_text().splitlines())}
    place = Path(tempfile.mkdtemp(prefix="mutants-"))
    tree = place / "tree"
    try:
        shutil.copytree(
            options.tree,
            tree,
            symlinks=True,
            ignore=shutil.ignore_patterns(
                ".git",
                ".venv*",
                "__pycache__",
                ".mypy_cache",
                ".ruff_cache",
                ".pytest_cache",
                "_build",
            ),
        )
        check = subprocess.run(
            [options.python, "-c", "import chronofed; print(chronofed.__file__)"],
            cwd=place,
            text=True,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        if not check.stdout.startswith(str(tree)):
            sys.exit(f"chronofed is not imported from the copy: {check.stdout}{check.stderr}")

        def note(**line):
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(
                line.get("result"),
                line["id"],
                line.get("seconds"),
                line.get("first", "")[:110],
                flush=True,
            )

        if not options.no_baseline and done.get("baseline", {}).get("result") != "passed":
            union = sorted({t for x in mutants for t in x["tests"]})
            whole = {t for t in union if "::" not in t}
            union = [t for t in union if "::" not in t or t.split("::")[0] not in whole]
            code, output, seconds = pytest(
                options.python, tree, union, 3600, [*markers, "--durations=40", "--durations-min=2"]
            )
            (options.out.with_suffix(".baseline.txt")).write_text(output)
            note(
                id="baseline",
                result="passed" if code == 0 else "failed",
                seconds=round(seconds, 1),
                first="" if code == 0 else first(output),
            )
            if code != 0:
                return 1
        if options.baseline:
            return 0
        for mutant in mutants:
            if mutant["id"] in done:
                continue
            path = tree / mutant["file"]
            text = path.read_text() if path.exists() else ""
            count = text.count(mutant["old"])
            if count != 1:
                note(
                    id=mutant["id"],
                    result="broken",
                    seconds=0.0,
                    first=f"old text occurs {count} times in {mutant['file']}",
                )
                continue
            try:
                path.write_text(text.replace(mutant["old"], mutant["new"]))
                code, output, seconds = pytest(
                    options.python, tree, mutant["tests"], options.timeout, markers
                )
            finally:
                path.write_text(text)
            result = {0: "survived", 1: "killed", None: "timeout"}.get(code, "broken")
            if code == 2 and "error" in output:  # it breaks already when a test module is imported
                result = "killed"
            note(
                id=mutant["id"],
                what=mutant["what"],
                result=result,
                seconds=round(seconds, 1),
                first="" if code == 0 else first(output),
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    summary(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
