"""The directory of a run.

=========================  =====================================================================
``spec.toml``              the resolved specification: all that is needed to run it again
``environment.json``       versions and machine
``metrics.jsonl``          one line per evaluation; the same bytes however often it was resumed
``period_accuracy.jsonl``  accuracy on every client's data sets at every evaluation
``round_weights.jsonl``    weights of the present and of each remembered round at every evaluation
``times.jsonl``            wall-clock seconds, which differ from run to run
``scenario.json``          who holds which classes when, for reports without the data
``measures.json``          how the user's own measures are shown, for readers without the user's module
``engines.jsonl``          the engine and why it was chosen: one line per start or resume
``flower.json``            on Flower only: the name under which clients keep their state of this run
``events.jsonl``           on Flower only: who joined, failed, came late or was refused
``checkpoints/``           the latest snapshots
``summary.json``           written last: its presence means that the run is finished
``failure.json``           the error that stopped the run, until it is resumed
``lock``                   held while a process runs the run
=========================  =====================================================================
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chronofed.core.atomic import append_line, flush, write_atomic
from chronofed.core.errors import RunError, cannot_write
from chronofed.runs.lock import is_locked, lock
from chronofed.training.measure import MeasureDisplay, read_displays
from chronofed.training.records import RECORDS

# Files with a line for each evaluation.
RECORD_FILES = ("metrics.jsonl", *(f"{record.name}.jsonl" for record in RECORDS), "times.jsonl")
State = Literal["finished", "running", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Reads and writes the files of one run; does not know how to train."""

    path: Path

    @classmethod
    def create(cls, path: Path, spec: str, environment: Mapping[str, Any]) -> "RunDirectory":
        """Make the directory of a new run.

        Raises:
            RunError: If there is a run already.
        """
        run = cls(path)
        run.check_new()
        try:
            run.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        write_atomic(path / "environment.json", _json(environment))
        # Written last, because a directory with a specification is a run.
        write_atomic(run.spec_path, spec.encode())
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Open the directory of an existing run.

        Raises:
            RunError: If there is none.
        """
        run = cls(path)
        if not run.exists:
            msg = (
                f"{path} is not a run directory (it has no spec.toml); "
                "runs are made by: chronofed run SPEC.toml"
            )
            raise RunError(msg)
        return run

    @property
    def exists(self) -> bool:
        """True if the directory holds a run."""
        return self.spec_path.is_file()

    def check_new(self) -> None:
        """Refuse to overwrite a run.

        Raises:
            RunError: If there is one.
        """
        if self.exists:
            msg = (
                f"{self.path} holds a run already: continue it with 'chronofed resume {self.path}', "
                "or choose another -o"
            )
            raise RunError(msg)

    @property
    def spec_path(self) -> Path:
        """The resolved specification."""
        return self.path / "spec.toml"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint, intact or not."""
        return any(self.checkpoints.glob("*.safetensors"))

    @property
    def remote(self) -> bool:
        """True if the clients and their states are on other machines."""
        return (self.path / "flower.json").exists()

    @property
    def state(self) -> State:
        """Finished, running, failed, or stopped for another reason."""
        if (self.path / "summary.json").exists():
            return "finished"
        if is_locked(self.path / "lock"):
            return "running"
        return "failed" if (self.path / "failure.json").exists() else "stopped"

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes off the run.

        Raises:
            RunError: If another process is running it.
        """
        return lock(self.path / "lock")

    def append(
        self,
        measures: Mapping[str, Any],
        seconds: Mapping[str, float],
        records: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Record one evaluation, and the time by phase since the one before.

        Args:
            measures: The line of ``metrics.jsonl``.
            seconds: The time by phase.
            records: Lines of other records by name (:mod:`chronofed.training.records`).
        """
        for name, line in (records or {}).items():
            append_line(self.path / f"{name}.jsonl", _json_line(line))
        append_line(self.path / "metrics.jsonl", _json_line(measures))
        spent = {phase: round(value, 6) for phase, value in seconds.items()}
        append_line(self.path / "times.jsonl", _json_line({"round": measures["round"], **spent}))

    def record_engine(self, about: Mapping[str, Any]) -> None:
        """Record the engine used from some round on."""
        append_line(self.path / "engines.jsonl", _json_line(about))

    def engines(self) -> list[dict[str, Any]]:
        """Return the engines used, each with its first round."""
        return list(self.lines("engines.jsonl"))

    def flush(self) -> None:
        """Bring the records to disk, before a checkpoint that relies on them."""
        for name in RECORD_FILES:
            if (self.path / name).exists():
                flush(self.path / name)

    def rewind(self, round_: int) -> None:
        """Drop what was recorded after ``round_``; it will be recorded again."""
        for name in RECORD_FILES:
            if (self.path / name).exists():
                kept = [line for line in self.lines(name) if line["round"] <= round_]
                write_atomic(self.path / name, b"".join(_json_line(k) + b"\n" for k in kept))

    def history(self) -> list[dict[str, Any]]:
        """Return all evaluations in order, without a last line that is still being written."""
        return list(self.lines("metrics.jsonl"))

    def record(self, name: str) -> list[dict[str, Any]]:
        """All lines of a record (:mod:`chronofed.training.records`), in order; empty if there is none."""
        return list(self.lines(f"{name}.jsonl"))

    def describe_measures(self, displays: Sequence[Mapping[str, Any]]) -> None:
        """Record how the user's own measures are shown, if there are any."""
        if displays:
            write_atomic(self.path / "measures.json", _json({"measures": displays}))

    def measures(self) -> tuple[MeasureDisplay, ...]:
        """The user's own measures, as readers show them; empty if there are none.

        Raises:
            RunError: If the file is damaged.
        """
        return read_displays((self._read_json("measures.json") or {}).get("measures", []))

    def describe_scenario(self, about: Mapping[str, Any]) -> None:
        """Record who holds which classes when; once, because it does not change."""
        write_atomic(self.path / "scenario.json", _json_line(about) + b"\n")

    def scenario(self) -> dict[str, Any]:
        """Return who holds which classes when; empty if it was not recorded."""
        return self._read_json("scenario.json") or {}

    def fail(self, why: str) -> None:
        """Record the error that stopped the run."""
        write_atomic(self.path / "failure.json", _json({"error": why}))

    def failure(self) -> str:
        """Return the error that stopped the run; empty if there is none."""
        return str((self._read_json("failure.json") or {}).get("error", ""))

    def clear_failure(self) -> None:
        """Remove the record of an earlier failure, because the run continues."""
        (self.path / "failure.json").unlink(missing_ok=True)

    def seconds(self) -> dict[str, float]:
        """Return the wall-clock seconds of the recorded rounds by phase, and in ``total``."""
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
        """Return the summary of a finished run; ``None`` if it is not finished."""
        return self._read_json("summary.json")

    def environment(self) -> dict[str, Any]:
        """Return the versions and the machine that the run was started with."""
        return self._read_json("environment.json") or {}

    def _read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.exists():
            return None
        content: dict[str, Any] = json.loads(path.read_bytes())
        return content

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of a record, without a last one that is still being written."""
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
    """Remove the temporary files and spilled client states that a killed process left behind."""
    # Imported here, because reports read run directories without torch.
    from chronofed.clients.spill import SPILL_PREFIX

    for path in folder.rglob(".*.tmp"):
        os.unlink(path)
    for path in folder.glob(f"{SPILL_PREFIX}*/"):
        shutil.rmtree(path)


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _json_line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()
