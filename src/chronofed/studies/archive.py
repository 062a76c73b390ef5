"""Finished runs of a study in one small file, from which tables are made again and a study goes on elsewhere.

A run keeps its specification, its evaluations, its summary and the machine that made it; not its model, its
checkpoints or the accuracies by data set. The file is JSON lines, compressed with xz: a head, and a line for
each run. A specification that names code of your own is left out, because reading it would import that code.
"""

import json
import lzma
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from chronofed.core import toml
from chronofed.core.atomic import make_folder, write_atomic
from chronofed.core.errors import ChronofedError, RunError
from chronofed.core.spec_io import from_table
from chronofed.runs.digests import Digests, digest
from chronofed.runs.directory import RunDirectory
from chronofed.runs.json_files import read_bytes
from chronofed.runs.spec import Experiment
from chronofed.studies.recipe import RecipeCell
from chronofed.studies.study import Study

FORMAT = 1
# What tables, curves and claims are made from.
FILES = ("environment.json", "metrics.jsonl", "summary.json")
# A file of more than this when it is unpacked is no archive of ours.
LARGEST_BYTES = 2**30
_OWN_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class ArchivedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line: a finished run, or a refusal.

    Attributes:
        cell: The specification of the cell as TOML, with all defaults; it names the run's directory.
        spec: The run's own, where what was left open is settled; empty for a refusal.
        files: Contents of :data:`FILES` by name; empty for a refusal.
        identity: What the run was trained with.
        refused: Why it was refused; empty for a run.
    """

    cell: str
    spec: str = ""
    files: dict[str, str] = {}
    identity: dict[str, str] = {}
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The numbers of runs that were added and that were there already, and of refusals."""

    added: int
    known: int
    refused: int


def pack(study: Study, cells: Iterable[RecipeCell]) -> tuple[bytes, int]:
    """Pack the finished runs and the refusals among some cells; return the file and their number.

    The same runs make the same bytes, whatever machine packs them.

    Raises:
        RunError: If a run was changed after it had finished.
    """
    distinct = {study.path(cell.experiment): cell.experiment for cell in cells}
    found = [run for path, one in distinct.items() if (run := _packed(study, path, one))]
    found.sort(key=lambda run: run.cell)
    lines = [json.dumps({"chronofed paper": FORMAT}).encode(), *map(msgspec.json.encode, found)]
    return lzma.compress(b"".join(line + b"\n" for line in lines), preset=9), len(found)


def _packed(study: Study, path: Path, experiment: Experiment) -> ArchivedRun | None:
    """Return the line of a run; ``None`` if it is not finished or needs the user's code."""
    if _names_own_code(toml.loads(experiment.resolved())):
        return None
    refused = study.refusal(experiment)
    if refused is not None:
        return ArchivedRun(cell=experiment.resolved(), refused=refused)
    directory = RunDirectory(path)
    if directory.state != "finished":
        return None
    for name in directory.changed_files(FILES):
        raise RunError(f"{path / name} was changed after the run had finished; run it again")
    files = {name: (read_bytes(path / name) or b"").decode() for name in FILES}
    known = directory.digests() or Digests()
    return ArchivedRun(
        cell=experiment.resolved(),
        spec=directory.spec_path.read_text(encoding="utf-8"),
        files=files,
        identity=dict(known.identity),
    )


def unpack(content: bytes, study: Study) -> Unpacked:
    """Write the runs of an archive into a study; a run that is there already is left alone.

    Its directory has the name that this version gives to the specification, with the defaults of keys that the
    version that made it did not know.

    Raises:
        RunError: If the file is damaged, or one of its runs is. What was written before that stays.
    """
    added = known = refused = 0
    for number, run in enumerate(_lines(content), start=2):
        where = f"line {number} of the archive"
        experiment = _experiment(run, where)
        path = study.path(experiment)
        if run.refused:
            refused += 1
            study.note_refusal(experiment, run.refused)
        elif RunDirectory(path).exists:
            known += 1
        else:
            _write(run, path, where)
            added += 1
    return Unpacked(added, known, refused)


def _lines(content: bytes) -> Iterator[ArchivedRun]:
    try:
        unpacker = lzma.LZMADecompressor()
        text = unpacker.decompress(content, LARGEST_BYTES)
        if not unpacker.eof:
            raise ValueError("it is cut off, or too large")
        head, *lines = text.splitlines()
        if json.loads(head) != {"chronofed paper": FORMAT}:
            raise ValueError("its format is that of another version")
        yield from [msgspec.json.decode(line, type=ArchivedRun) for line in lines]
    except (lzma.LZMAError, ValueError, msgspec.MsgspecError) as error:
        raise RunError(f"not an archive of runs, or damaged ({error})") from error


def _experiment(run: ArchivedRun, where: str) -> Experiment:
    """Read the specification of a cell, which may be older than this version."""
    try:
        table = toml.loads(run.cell)
        if _names_own_code(table) or _names_own_code(toml.loads(run.spec)):
            raise RunError("its specification names code that is not chronofed's")
        return from_table(table, Experiment)
    except ChronofedError as error:
        raise RunError(f"{where}: {error}") from error


def _write(run: ArchivedRun, path: Path, where: str) -> None:
    """Write the directory of a run, whole or not at all."""
    if set(run.files) != set(FILES):
        raise RunError(f"{where}: a run has the files {', '.join(FILES)}, not others")
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        make_folder(temporary)
        contents = {name: text.encode() for name, text in run.files.items()}
        contents["spec.toml"] = run.spec.encode()
        for name, content in contents.items():
            write_atomic(temporary / name, content)
        lasting = {n: digest(c) for n, c in contents.items() if n != "environment.json"}
        Digests(run.identity, lasting).write(temporary)
        directory = RunDirectory(temporary)
        if not directory.history() or not directory.summary():
            raise RunError(f"{where}: a run without evaluations")
        temporary.rename(path)
    except RunError as error:
        raise RunError(str(error).replace(str(temporary), where)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _names_own_code(part: Any) -> bool:
    """Tell if a specification names a class or function of the user's, as ``module:Class``."""
    if isinstance(part, Mapping):
        return any(map(_names_own_code, part.values()))
    if isinstance(part, list | tuple):
        return any(map(_names_own_code, part))
    return isinstance(part, str) and bool(_OWN_CODE.fullmatch(part))
