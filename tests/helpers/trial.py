"""Helpers for tests with Flower's real processes, which need chronofed[flower]: make test-flower."""

import atexit
import importlib.util
import json
import os
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch

from chronofed import CoreSet, Experiment, Linear, Method, Scaffold, Subsets, Train
from chronofed.flower.app import new_app
from chronofed.flower.local import LocalFederation
from chronofed.runs import RunDirectory, runner
from chronofed.runs.checkpoint import load_latest
from chronofed.training.evaluate import Evaluate

HAVE = importlib.util.find_spec("flwr") is not None
NEEDS_FLOWER = pytest.mark.skipif(
    os.environ.get("CHRONOFED_TEST_FLOWER") != "1",
    reason="run by: make test-flower" if HAVE else "flwr is not installed (make test-flower does)",
)
NEEDS_NGINX = pytest.mark.skipif(
    shutil.which("nginx", path=f"{os.environ.get('PATH')}:/usr/sbin") is None,
    reason="nginx is missing: apt install nginx-light",
)
STATEFUL = Method(Scaffold(), CoreSet(size=10))


def small(method: Method = STATEFUL, rounds: int = 4, **changes) -> Experiment:
    """Three clients on the embedded data, with a model of 7850 parameters."""
    start = Experiment(
        name="small",
        rounds=rounds,
        model=Linear(),
        scenario=Subsets(clients=3, subsets=4),
        method=method,
        train=Train(steps=4, batch_size=16),
        evaluate=Evaluate(seen=0),
        engine="serial",
    )
    return msgspec.structs.replace(start, **changes)


@cache
def undisturbed(experiment: Experiment) -> Path:
    """Run the same experiment in this process on the serial engine: a disturbed run must equal it."""
    folder = Path(tempfile.mkdtemp(prefix="chronofed-serial-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    runner.run(experiment, folder / "run")
    return folder / "run"


def state(run: Path) -> dict:
    """Return all numbers of the last checkpoint but client states, which a server on Flower does not see."""
    last, complaints = load_latest(run / "checkpoints")
    assert not complaints
    return {
        "round": last.round,
        "traffic": last.traffic,
        "past": [(k.round, k.client, k.key, k.size) for k in last.past],
        **{f"server/{name}": t for name, t in last.server.items()},
        "buffers": last.buffers,
        **{f"weighting_state/{name}": t for name, t in last.weighting_state.items()},
        **{f"past/{n}/{m}": t for n, k in enumerate(last.past) for m, t in k.record.items()},
    }


def differences(one: Path, other: Path) -> list[str]:
    """Return the entries in which the last checkpoints of two runs differ, by any bit."""
    a, b = state(one), state(other)
    wrong = sorted(a.keys() ^ b.keys())
    for name in a.keys() & b.keys():
        tensor = isinstance(a[name], torch.Tensor)
        if not (torch.equal(a[name], b[name]) if tensor else a[name] == b[name]):
            wrong.append(name)
    return wrong


def events(run: Path) -> list[dict]:
    path = run / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kinds(run: Path) -> list[str]:
    return [event["event"] for event in events(run)]


def wait(condition, seconds: float = 240.0, what: str = "it") -> None:
    """Wait for a condition; the limit only bounds a hang and asserts nothing about speed."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.2)


def running(text: str) -> list[str]:
    """Return the command lines of all processes of this machine that contain a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text())
        except OSError:
            continue
    return [line for line in found if text in line]


def rounds_done(run: Path) -> int:
    return len(RunDirectory(run).history())


class Trial:
    """One run of an app on a federation."""

    def __init__(
        self, folder: Path, federation: LocalFederation, experiment: Experiment, **settings
    ):
        self.federation = federation
        self.run, self.app, self.marks = (folder / name for name in ("run", "app", "marks"))
        settings = {"join_timeout_s": 120.0, "round_timeout_s": 240.0, **settings}
        new_app(self.app, experiment.resolved(), self.run, **settings)
        self.marks.mkdir()

    def program(self, side: str, text: str) -> None:
        """Replace the app's client or server; ``MARKS`` in it is a folder to leave marks in."""
        text = text.replace("MARKS", f"Path({str(self.marks)!r})")
        (self.app / f"{side}_app.py").write_text(text)

    def submit(self):
        return self.federation.submit(self.app)

    def finish(self, seconds: float = 400.0) -> None:
        wait(lambda: RunDirectory(self.run).summary() is not None, seconds, "the end of the run")

    def events(self, kind: str) -> list[dict]:
        return [event for event in events(self.run) if event["event"] == kind]
