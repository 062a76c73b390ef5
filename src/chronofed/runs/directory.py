"""The directory of a run.

=========================  =====================================================================
``spec.toml``              the resolved specification: all that is needed to run it again
``environment.json``       versions and machine
``digests.json``           digests of what it was trained with (data, settings, modules) and of final records
``metrics.jsonl``          one line per evaluation; the same bytes however often it was resumed
``period_accuracy.jsonl``  accuracy on every client's data sets at every evaluation
``period_error.jsonl``     of a regression, the mean absolute error instead
``breakdown.jsonl``        figures by class and by client at every evaluation
``baselines.json``         scores of the baselines on the same rows
``round_weights.jsonl``    weights of the present and of each remembered round at every evaluation
``times.jsonl``            wall-clock seconds, which differ from run to run
``scenario.json``          who holds which classes when, for reports without the data
``preparation.json``       for a table: how its columns became features and classes
``scales.json``            for a table: how far the features of every period lie from what was fitted
``periods.json``           for a table: digests of its rows by period
``extensions.jsonl``       one line for every time that a finished run went on: new periods, files, rounds
``extending.json``         an extension that is being written down; ``extend`` and ``resume`` finish it
``measures.json``          how the user's own measures are shown, for readers without the user's module
``engines.jsonl``          the engine and why it was chosen: one line per start or resume
``flower.json``            on Flower only: the name under which clients keep their state of this run
``events.jsonl``           on Flower only: who joined, failed, came late or was refused
``answers.jsonl``          on Flower only: who was asked and who answered, a line for every exchange
``checkpoints/``           the latest snapshots
``model/``                 the trained model, ready for use (:mod:`chronofed.runs.model_files`)
``summary.json``           written last: its presence means that the run is finished
``failure.json``           the error that stopped the run, until it is resumed
``lock``, ``running``      held while a process runs the run
=========================  =====================================================================
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chronofed.core.atomic import append_line, flush, make_folder, remove, write_atomic
from chronofed.core.errors import RunError
from chronofed.runs.digests import Digests, digest, file_digest, read_digests
from chronofed.runs.json_files import read_bytes, read_json, read_lines, whole_lines
from chronofed.runs.lock import is_running, lock
from chronofed.training.measure import MeasureDisplay, read_displays
from chronofed.training.records import RECORDS

# Files with a line for each evaluation, which are the same however often a run was resumed.
LASTING_FILES = ("metrics.jsonl", *(f"{record.name}.jsonl" for record in RECORDS))
RECORD_FILES = (*LASTING_FILES, "times.jsonl")
JSON_FILES = (
    "summary.json",
    "scenario.json",
    "environment.json",
    "measures.json",
    "baselines.json",
    "failure.json",
    "periods.json",
    "extending.json",
)
EXTENSIONS = "extensions.jsonl"
State = Literal["finished", "running", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Reads and writes the files of one run; does not know how to train."""

    path: Path

    @classmethod
    def create(
        cls,
        path: Path,
        spec: str,
        environment: Mapping[str, Any],
        identity: Mapping[str, str] | None = None,
    ) -> "RunDirectory":
        """Make the directory of a new run.

        Args:
            path: The directory.
            spec: The resolved specification.
            environment: Versions and machine.
            identity: What it will be trained with (:mod:`chronofed.runs.identity`).

        Raises:
            RunError: If there is a run already.
        """
        run = cls(path)
        run.check_new()
        make_folder(path)
        make_folder(run.checkpoints)
        write_atomic(path / "environment.json", _json(environment))
        Digests(identity or {}, {run.spec_path.name: digest(spec.encode())}).write(path)
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
            lacks = "digests.json" if run.spec_path.is_file() else "spec.toml"
            msg = (
                f"{path} is not a run directory (it has no {lacks}); "
                "runs are made by: chronofed run SPEC.toml"
            )
            raise RunError(msg)
        return run

    @property
    def exists(self) -> bool:
        """True if the directory holds a run: a ``spec.toml`` alone may be a user's own."""
        names = ("digests.json", "environment.json", "metrics.jsonl", "summary.json", "checkpoints")
        return self.spec_path.is_file() and any((self.path / name).exists() for name in names)

    def check_new(self) -> None:
        """Refuse to overwrite a run.

        Raises:
            RunError: If there is one.
        """
        if self.spec_path.exists() and not self.exists:
            msg = f"{self.path} holds a spec.toml that is no run's; choose another -o"
            raise RunError(msg)
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
        if is_running(self.path):
            return "running"
        return "failed" if (self.path / "failure.json").exists() else "stopped"

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes off the run.

        Raises:
            RunError: If another process is running it.
            StorageError: If nothing can be written there.
        """
        return lock(self.path)

    def check_files(self) -> None:
        """Refuse a folder in the place of a file and the reverse, before anything is touched.

        Raises:
            RunError: With its name.
        """
        if self.checkpoints.exists() and not self.checkpoints.is_dir():
            raise RunError(f"{self.checkpoints} is not a folder; move it away, then resume")
        names = (*JSON_FILES, *RECORD_FILES, EXTENSIONS, "engines.jsonl", "digests.json")
        for path in (
            *(self.path / name for name in names),
            *self.checkpoints.glob("*.safetensors"),
        ):
            if path.is_dir():
                raise RunError(f"{path} is a folder; move it away, then resume")

    def digests(self) -> Digests | None:
        """Return the digests of the run; ``None`` if it has none.

        Raises:
            RunError: If they are damaged.
        """
        return read_digests(self.path)

    def changed_files(self, names: Sequence[str]) -> list[str]:
        """Return those of some files that changed after they had been written for the last time.

        Raises:
            RunError: If the digests are damaged.
        """
        return (self.digests() or Digests()).changed(self.path, names)

    def append(
        self,
        measures: Mapping[str, Any],
        seconds: Mapping[str, float],
        records: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, bytes]:
        """Record one evaluation, and the time by phase since the one before.

        Args:
            measures: The line of ``metrics.jsonl``.
            seconds: The time by phase.
            records: Lines of other records by name (:mod:`chronofed.training.records`).

        Returns:
            The new bytes of every file.
        """
        spent = {phase: round(value, 6) for phase, value in seconds.items()}
        lines = {f"{name}.jsonl": _json_line(line) for name, line in (records or {}).items()}
        lines["metrics.jsonl"] = _json_line(measures)
        lines["times.jsonl"] = _json_line({"round": measures["round"], **spent})
        for name, line in lines.items():
            append_line(self.path / name, line)
        return {name: line + b"\n" for name, line in lines.items()}

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

    def cut(self, sizes: Mapping[str, int]) -> None:
        """Cut lasting records to some sizes in bytes; a record without one becomes empty."""
        for name in LASTING_FILES:
            content = read_bytes(self.path / name)
            if content is not None and len(content) != sizes.get(name, 0):
                write_atomic(self.path / name, content[: sizes.get(name, 0)])

    def rewind(self, name: str, round_: int) -> int:
        """Keep the lines of a record up to a round; return the number of damaged ones that were dropped."""
        content = read_bytes(self.path / name) or b""
        found = list(whole_lines(name, content))
        kept = b"".join(line + b"\n" for line, table in found if table and table["round"] <= round_)
        if kept != content:
            write_atomic(self.path / name, kept)
        return sum(table is None for _, table in found)

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
        else:
            remove(self.path / "measures.json")

    def measures(self) -> tuple[MeasureDisplay, ...]:
        """The user's own measures, as readers show them; empty if there are none.

        Raises:
            RunError: If the file is damaged.
        """
        return read_displays((read_json(self.path / "measures.json") or {}).get("measures", []))

    def describe_scenario(self, about: Mapping[str, Any]) -> None:
        """Record who holds which classes when; once, because it does not change."""
        write_atomic(self.path / "scenario.json", _json_line(about) + b"\n")

    def describe_preparation(self, content: bytes) -> None:
        """Record how the columns of a table became features and classes."""
        write_atomic(self.path / "preparation.json", content)

    def describe_scales(self, content: bytes) -> None:
        """Record how far the features of every period lie from what the preparation was fitted on."""
        write_atomic(self.path / "scales.json", content)

    def describe_periods(self, content: bytes) -> None:
        """Record digests of the table's rows by period."""
        write_atomic(self.path / "periods.json", content)

    def extensions(self) -> list[dict[str, Any]]:
        """Return a line for every time that the finished run went on."""
        return list(self.lines(EXTENSIONS))

    def describe_baselines(self, about: Mapping[str, Any]) -> None:
        """Record the scores of the baselines."""
        write_atomic(self.path / "baselines.json", _json(about))

    def baselines(self) -> dict[str, Any]:
        """Return the scores of the baselines; empty if there are none."""
        return read_json(self.path / "baselines.json") or {}

    def scenario(self) -> dict[str, Any]:
        """Return who holds which classes when; empty if it was not recorded."""
        return read_json(self.path / "scenario.json") or {}

    def fail(self, why: str) -> None:
        """Record the error that stopped the run."""
        write_atomic(self.path / "failure.json", _json({"error": why}))

    def failure(self) -> str:
        """Return the error that stopped the run; empty if there is none."""
        return str((read_json(self.path / "failure.json") or {}).get("error", ""))

    def clear_failure(self) -> None:
        """Remove the record of an earlier failure, because the run continues."""
        remove(self.path / "failure.json")

    def seconds(self) -> dict[str, float]:
        """Return the wall-clock seconds of the recorded rounds by phase, and in ``total``."""
        spent: dict[str, float] = {}
        for line in self.lines("times.jsonl"):
            for phase, value in line.items():
                if phase != "round":
                    spent[phase] = spent.get(phase, 0.0) + float(value)
        return spent

    def take_times(self, round_: int) -> dict[str, float]:
        """Take out the seconds of a round that is evaluated again, and return them; empty if there are none."""
        last = list(self.lines("times.jsonl"))[-1:]
        if not last or last[0]["round"] < round_:
            return {}
        self.rewind("times.jsonl", round_ - 1)
        return {phase: float(value) for phase, value in last[0].items() if phase != "round"}

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished: from now on, its records must not change."""
        content, known = _json(summary), self.digests() or Digests()
        records = {name: file_digest(self.path / name) for name in LASTING_FILES}
        files = {name: found for name, found in records.items() if found}
        files["summary.json"] = digest(content)
        Digests(known.identity, {**known.files, **files}).write(self.path)
        write_atomic(self.path / "summary.json", content)

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a finished run; ``None`` if it is not finished."""
        return read_json(self.path / "summary.json")

    def environment(self) -> dict[str, Any]:
        """Return the versions and the machine that the run was started with."""
        return read_json(self.path / "environment.json") or {}

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of a record, without a last one that is still being written."""
        return read_lines(self.path / name)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and spilled client states that a killed process left behind."""
    # Imported here, because reports read run directories without torch.
    from chronofed.clients.spill import SPILL_PREFIX

    for pattern in (".*.tmp", "checkpoints/.*.tmp", f"{SPILL_PREFIX}*/"):
        for path in folder.glob(pattern):
            remove(path)


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _json_line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()
