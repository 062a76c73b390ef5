"""Writing down that a finished run goes on, so that a crash at any moment leaves the old run or the new one.

First ``extending.json`` is written, with everything that changes: from then on the run is extended. Then the
files are brought up to date, which can be repeated, and last ``extending.json`` is removed.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from chronofed.core.atomic import append_line, remove, write_atomic
from chronofed.core.errors import ChronofedError, RunError
from chronofed.data.preparation import Preparation, Settled
from chronofed.runs.checkpoint import RunPoint, files, load_with_point, save
from chronofed.runs.digests import Digests, digest
from chronofed.runs.directory import EXTENSIONS, LASTING_FILES, RunDirectory
from chronofed.runs.json_files import parsed_line, read_bytes, read_json
from chronofed.runs.period_digests import NAME, PeriodDigests
from chronofed.training.loop import Snapshot

JOURNAL = "extending.json"
# Older checkpoints are left to the recorder, which knows how many to keep.
_KEEP_ALL = 10**9


@dataclass(frozen=True, slots=True)
class Extension:
    """Everything that changes in a run's directory when the run goes on.

    Attributes:
        round: Rounds done.
        spec: The new specification.
        identity: What the run will be trained with (:mod:`chronofed.runs.identity`).
        periods: The new content of ``periods.json``; empty for data without periods.
        sizes: Bytes of each lasting record that stay.
        line: The line of ``extensions.jsonl``.
    """

    round: int
    spec: str
    identity: dict[str, str]
    periods: str
    sizes: dict[str, int]
    line: dict[str, Any]


def commit(directory: RunDirectory, extension: Extension) -> None:
    """Extend a run; the caller holds its lock."""
    write_atomic(directory.path / JOURNAL, json.dumps(asdict(extension)).encode())
    _apply(directory, extension)


def recover(directory: RunDirectory) -> None:
    """Finish to write down an extension that was interrupted, if there is one.

    Raises:
        RunError: If another process is using the run, or the file is damaged.
    """
    if not (directory.path / JOURNAL).exists():
        return
    with directory.lock():
        table = read_json(directory.path / JOURNAL)
        if table is None:
            return
        try:
            extension = msgspec.convert(table, Extension)
        except msgspec.ValidationError as error:
            raise RunError(f"{directory.path / JOURNAL} is damaged ({error})") from error
        _apply(directory, extension)


def _apply(directory: RunDirectory, extension: Extension) -> None:
    """Bring the files up to date; may be repeated from any point."""
    _point_checkpoint(directory, extension)
    remove(directory.path / "summary.json")
    directory.cut(extension.sizes)
    if extension.periods:
        directory.describe_periods(extension.periods.encode())
    spec = extension.spec.encode()
    write_atomic(directory.spec_path, spec)
    Digests(extension.identity, {directory.spec_path.name: digest(spec)}).write(directory.path)
    if directory.extensions()[-1:] != [extension.line]:
        append_line(directory.path / EXTENSIONS, json.dumps(extension.line).encode())
    remove(directory.path / JOURNAL)


def _point_checkpoint(directory: RunDirectory, extension: Extension) -> None:
    """Save the last checkpoint again, for the records that stay and the new identity."""
    snapshot = last_snapshot(directory, extension.round)
    point = RunPoint(records_of(directory, extension.sizes), extension.identity)
    path = save(directory.checkpoints, snapshot, _KEEP_ALL, point)
    for other in files(directory.checkpoints):
        if other.name[:8] == path.name[:8] and other != path:
            remove(other)


def last_snapshot(directory: RunDirectory, round_: int) -> Snapshot:
    """Load the checkpoint of the last round.

    Raises:
        RunError: If there is none that is intact.
    """
    complaint = "there is none"
    for path in files(directory.checkpoints):
        if path.name[:8] == f"{round_:08d}":
            try:
                return load_with_point(path)[0]
            except RunError as error:
                complaint = str(error)
    raise RunError(
        f"{directory.path}: needs the checkpoint of its last round, {round_}, to go on ({complaint}); start a "
        f"new run instead: chronofed run {directory.spec_path} -o NEW"
    )


def record_sizes(directory: RunDirectory, round_: int, open_again: bool) -> dict[str, int]:
    """Return the bytes of each lasting record that stay.

    Args:
        directory: The run.
        round_: Rounds done.
        open_again: Whether to leave out the evaluation after the last round, because a longer run would not
            have made it, or would have made it with later data.
    """
    sizes = {}
    for name in LASTING_FILES:
        content = read_bytes(directory.path / name) or b""
        start = content.rfind(b"\n", 0, len(content) - 1) + 1
        last = parsed_line(name, content[start:].rstrip(b"\n")) if content else None
        again = open_again and last is not None and last["round"] == round_
        sizes[name] = start if again else len(content)
    return sizes


def records_of(directory: RunDirectory, sizes: Mapping[str, int]) -> dict[str, tuple[int, str]]:
    """Return size and digest of the part of each lasting record that stays."""
    contents = {
        name: (read_bytes(directory.path / name) or b"")[:size] for name, size in sizes.items()
    }
    return {name: (len(content), digest(content)) for name, content in contents.items()}


def known_periods(directory: RunDirectory) -> PeriodDigests | None:
    """Read the digests of a run's rows by period; ``None`` if its data have no periods.

    Raises:
        RunError: If the file is damaged.
    """
    table = read_json(directory.path / NAME)
    if table is None:
        return None
    try:
        return PeriodDigests.from_table(table)
    except ValueError as error:
        raise RunError(f"{directory.path / NAME} is damaged ({error})") from error


def frozen_preparation(path: Path) -> Preparation | None:
    """Read how a run's columns became features and classes; ``None`` if it was not trained on a table."""
    content = read_bytes(path / "preparation.json")
    where = str(path / "preparation.json")
    return None if content is None else Preparation.from_json(content, where)


def settled(directory: RunDirectory) -> Settled:
    """Return what a run has settled about its table: rows of later periods do not count until it is extended.

    Raises:
        ChronofedError: If the run was extended, and what it has settled is damaged.
    """
    extended = (directory.path / EXTENSIONS).exists()
    try:
        known = known_periods(directory)
        found = Settled(periods=tuple(known.periods) if known else ())
        return replace(found, preparation=frozen_preparation(directory.path)) if extended else found
    except ChronofedError:
        if extended:
            raise
        # It was fitted on the same data, and can be fitted again.
        return Settled()
