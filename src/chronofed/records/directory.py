"""The directory of a run.

====================  ==================================================================
``spec.toml``         the resolved specification: all that is needed to run it again
``environment.json``  versions and machine
``metrics.jsonl``     one line an evaluation; the same bytes however often it was resumed
``periods.jsonl``     accuracy on every client's data sets at every evaluation
``weights.jsonl``     how much the present and each remembered round counted at every evaluation
``times.jsonl``       wall-clock seconds, which differ from run to run
``scenario.json``     who holds which classes when, for those who look at the run later
``engine.jsonl``      which engine was used, and why: one line each time the run was started or resumed
``flower.json``       on Flower only: the name under which clients keep their memory of this run
``events.jsonl``      on Flower only: who joined, failed, came late or was refused
``checkpoints/``      the latest snapshots
``summary.json``      written last: its presence means that the run is finished
``failure.json``      why the run could not go on, until it is resumed
``lock``              held while a process works on the run
====================  ==================================================================
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chronofed.errors import RunError, cannot_write
from chronofed.records.atomic import append_line, flush, write_atomic

RECORDS = ("metrics.jsonl", "periods.jsonl", "weights.jsonl", "times.jsonl")
State = Literal["finished", "running", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Reads and writes the files of one run; knows nothing of training."""

    path: Path

    @classmethod
    def create(cls, path: Path, spec: str, environment: Mapping[str, Any]) -> "RunDirectory":
        """Make the directory of a new run.

        Raises:
            RunError: If there is a run already.
        """
        run = cls(path)
        if run.spec_path.exists():
            msg = (
                f"{path} holds a run already: continue it with 'chronofed resume {path}', "
                "or choose another -o"
            )
            raise RunError(msg)
        try:
            run.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        write_atomic(path / "environment.json", _json(environment))
        write_atomic(run.spec_path, spec.encode())  # last: from here on it is a run
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """The directory of an existing run.

        Raises:
            RunError: If there is none.
        """
        run = cls(path)
        if not run.spec_path.is_file():
            msg = (
                f"{path} is not a run directory (it has no spec.toml); "
                "runs are made by: chronofed run SPEC.toml"
            )
            raise RunError(msg)
        return run

    @property
    def spec_path(self) -> Path:
        """The resolved specification."""
        return self.path / "spec.toml"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def elsewhere(self) -> bool:
        """Whether the run's clients, and what they keep, are on other machines."""
        return (self.path / "flower.json").exists()

    @property
    def state(self) -> State:
        """Whether the run is finished, being worked on, or stopped half way, by a failure or otherwise."""
        if (self.path / "summary.json").exists():
            return "finished"
        if self._locked():
            return "running"
        return "failed" if (self.path / "failure.json").exists() else "stopped"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes off the run; the lock goes with the process, however it ends.

        Raises:
            RunError: If another process works on the run.
        """
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                msg = f"{self.path}: another process is working on this run; wait for it or stop it"
                raise RunError(msg) from error
            yield

    def _locked(self) -> bool:
        path = self.path / "lock"
        if not path.exists():
            return False
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def append(
        self,
        measures: Mapping[str, Any],
        seconds: Mapping[str, float],
        periods: Mapping[str, Any] | None = None,
        weights: Mapping[str, Any] | None = None,
    ) -> None:
        """Record one evaluation, and the time by phase since the one before."""
        for name, line in (("periods.jsonl", periods), ("weights.jsonl", weights)):
            if line:
                append_line(self.path / name, _json_line(line))
        append_line(self.path / "metrics.jsonl", _json_line(measures))
        spent = {phase: round(value, 6) for phase, value in seconds.items()}
        append_line(self.path / "times.jsonl", _json_line({"round": measures["round"], **spent}))

    def note_engine(self, about: Mapping[str, Any]) -> None:
        """Record where clients run from some round on."""
        append_line(self.path / "engine.jsonl", _json_line(about))

    def engines(self) -> list[dict[str, Any]]:
        """Where clients ran, from which round on."""
        return list(self.lines("engine.jsonl"))

    def flush(self) -> None:
        """Bring the records to disk, before a checkpoint that relies on them."""
        for name in RECORDS:
            if (self.path / name).exists():
                flush(self.path / name)

    def rewind(self, round_: int) -> None:
        """Drop what was recorded after ``round_``; it will be recorded again."""
        for name in RECORDS:
            if (self.path / name).exists():
                kept = [line for line in self.lines(name) if line["round"] <= round_]
                write_atomic(self.path / name, b"".join(_json_line(k) + b"\n" for k in kept))

    def history(self) -> list[dict[str, Any]]:
        """All evaluations, in order; a last line that is still being written is passed over."""
        return list(self.lines("metrics.jsonl"))

    def periods(self) -> list[dict[str, Any]]:
        """Accuracy by client and period at every evaluation."""
        return list(self.lines("periods.jsonl"))

    def weights(self) -> list[dict[str, Any]]:
        """Round weights at every evaluation; empty where nothing is remembered."""
        return list(self.lines("weights.jsonl"))

    def describe_scenario(self, about: Mapping[str, Any]) -> None:
        """Record who holds which classes when; once, since it does not change."""
        write_atomic(self.path / "scenario.json", _json_line(about) + b"\n")

    def scenario(self) -> dict[str, Any]:
        """Who holds which classes when; empty if it was not recorded."""
        return self._read_json("scenario.json") or {}

    def fail(self, why: str) -> None:
        """Note why the run could not go on."""
        write_atomic(self.path / "failure.json", _json({"error": why}))

    def failure(self) -> str:
        """Why the run could not go on; empty if nothing is known."""
        return str((self._read_json("failure.json") or {}).get("error", ""))

    def begin(self) -> None:
        """The run goes on: an earlier failure is over."""
        (self.path / "failure.json").unlink(missing_ok=True)

    def seconds(self) -> dict[str, float]:
        """Wall-clock time spent on the recorded rounds, by phase; ``total`` is all of it."""
        spent: dict[str, float] = {}
        for line in self.lines("times.jsonl"):
            for phase, value in line.items():
                if phase != "round":
                    spent[phase] = spent.get(phase, 0.0) + float(value)
        return spent

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        write_atomic(self.path / "summary.json", _json(summary))

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run."""
        return self._read_json("summary.json")

    def environment(self) -> dict[str, Any]:
        """Versions and machine that the run was started on."""
        return self._read_json("environment.json") or {}

    def _read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.exists():
            return None
        content: dict[str, Any] = json.loads(path.read_bytes())
        return content

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The lines of a record one by one; a last one that is still being written is passed over."""
        path = self.path / name
        content = path.read_bytes() if path.exists() else b""
        whole, _, _ = content.rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                yield json.loads(line)
            except ValueError as error:
                msg = f"{path}, line {number} is damaged; delete the lines from there on and resume"
                raise RunError(msg) from error


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed process left behind, and lockers that it had spilled here."""
    for path in folder.rglob(".*.tmp"):
        os.unlink(path)
    for path in folder.glob("lockers-*/"):
        shutil.rmtree(path)


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _json_line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()
