"""Finding where a run can continue: the newest checkpoint that the records reach, whatever else is damaged."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chronofed.core.atomic import make_folder, remove
from chronofed.core.errors import RunError
from chronofed.runs.checkpoint import FormatError, RunPoint, files, load_with_point
from chronofed.runs.digests import Digests, digest
from chronofed.runs.directory import LASTING_FILES, RunDirectory, remove_leftovers
from chronofed.runs.identity import ChangedError, changes
from chronofed.runs.json_files import parsed_line, read_bytes
from chronofed.runs.spec import FOREVER
from chronofed.training.loop import Snapshot

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Start:
    """Point at which a run continues, and faults of its files.

    Attributes:
        snapshot: The snapshot to continue from; ``None`` for the beginning.
        point: What its checkpoint says about the run.
        complaints: One line for everything that is damaged.
        damaged: Checkpoints of no use.
    """

    snapshot: Snapshot | None = None
    point: RunPoint = field(default_factory=RunPoint)
    complaints: list[str] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.snapshot.round if self.snapshot else 0


def finished_summary(directory: RunDirectory) -> tuple[dict[str, Any] | None, str]:
    """Return the summary of a finished run, or ``None`` and the damage that forbids to trust it.

    Raises:
        RunError: If the digests are damaged. The results may be right, so there is no reason to train again.
    """
    try:
        summary = directory.summary()
    except RunError as error:
        return None, str(error)
    if summary is None:
        return None, ""
    digests = directory.digests() or Digests()
    try:
        changed = digests.changed(directory.path, (*LASTING_FILES, "summary.json"))
    except RunError as error:
        return None, str(error)
    if not changed:
        return summary, ""
    return None, f"{directory.path / changed[0]} was changed after the run had finished"


def find_start(directory: RunDirectory, identity: Mapping[str, str]) -> Start:
    """Find where a run can continue; nothing is written.

    Args:
        directory: The run.
        identity: What it would be trained with from now on.

    Raises:
        FormatError: If another version of chronofed wrote a checkpoint.
        RunError: If the run was trained with something else, or a file cannot be read.
    """
    start = Start()
    known = _known_identity(directory, start)
    for path in files(directory.checkpoints):
        try:
            snapshot, point = load_with_point(path)
        except FormatError:
            raise
        except RunError as error:
            start.complaints.append(str(error))
            start.damaged.append(path)
            continue
        known = known or point.identity
        broken = _broken_record(directory, point)
        if not broken:
            start.snapshot, start.point = snapshot, point
            break
        start.complaints.append(f"{broken}, which checkpoint {path.name} needs")
    check_identity(directory, identity, known)
    start.complaints += _damaged_ends(directory, start.point)
    return start


def apply(start: Start, directory: RunDirectory, identity: Mapping[str, str]) -> None:
    """Bring the files to the state of the start, and log what was damaged."""
    for complaint in start.complaints:
        logger.warning("%s; resuming from round %d", complaint, start.round)
    for path in (*start.damaged, directory.path / "summary.json"):
        remove(path)
    make_folder(directory.checkpoints)
    remove_leftovers(directory.path)
    directory.clear_failure()
    Digests(identity, {"spec.toml": digest(read_bytes(directory.spec_path) or b"")}).write(
        directory.path
    )
    directory.cut({name: size for name, (size, _) in start.point.records.items()})
    for name, last in (("times.jsonl", start.round), ("engines.jsonl", FOREVER)):
        dropped = directory.rewind(name, last)
        if dropped:
            logger.warning("%s: dropped %d damaged lines", directory.path / name, dropped)


def _known_identity(directory: RunDirectory, start: Start) -> Mapping[str, str]:
    """Return what the run was trained with; empty if its file is missing or damaged."""
    try:
        digests = directory.digests()
    except RunError as error:
        start.complaints.append(str(error))
        return {}
    return digests.identity if digests else {}


def check_identity(
    directory: RunDirectory, now: Mapping[str, str], known: Mapping[str, str] | None = None
) -> None:
    """Refuse to continue a run with something else than it was begun with.

    Args:
        directory: The run.
        now: What it would be trained with from now on.
        known: What it was trained with; by default as ``digests.json`` says.

    Raises:
        ChangedError: With what changed.
    """
    known = _known_identity(directory, Start()) if known is None else known
    changed = changes(known, now) if known else ""
    if changed:
        raise ChangedError(
            f"{directory.path}: changed since the run began: {changed}; change it back to resume, or start "
            f"over: chronofed run {directory.spec_path} -o NEW"
        )


def _broken_record(directory: RunDirectory, point: RunPoint) -> str:
    """Name a record that lacks something of what it held at a checkpoint; empty if none does."""
    for name, (size, expected) in point.records.items():
        content = (read_bytes(directory.path / name) or b"")[:size]
        if hashlib.blake2b(content, digest_size=16).hexdigest() != expected:
            lines = content.split(b"\n")
            bad = next((k for k, line in enumerate(lines, 1) if not parsed_line(name, line)), 0)
            place = (
                f", line {bad} is damaged"
                if 0 < bad < len(lines)
                else " lacks lines or was changed"
            )
            return f"{directory.path / name}{place}"
    return ""


def _damaged_ends(directory: RunDirectory, point: RunPoint) -> list[str]:
    """Describe the damaged lines after the start; a last line without its end is what a crash leaves."""
    found = []
    for name in LASTING_FILES:
        size, _ = point.records.get(name, (0, ""))
        content = read_bytes(directory.path / name) or b""
        first = content[:size].count(b"\n") + 1
        for number, line in enumerate(content[size:].split(b"\n")[:-1], start=first):
            if not parsed_line(name, line):
                found.append(
                    f"{directory.path / name}, line {number} is damaged: dropped from there on"
                )
                break
    return found
