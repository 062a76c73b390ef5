"""Reading the JSON files of a run: what is damaged, or not of the expected form, is one clear error.

This module needs no torch: commands that only read runs import it, too.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from chronofed.core.errors import RunError

Number = int | float | bool | None


class ScenarioTable(TypedDict):
    """The form of ``scenario.json``."""

    rounds: int
    clients: int
    returning: bool
    remote: NotRequired[bool]
    classes: list[str]
    shown: list[int]
    held: list[list[tuple[int, list[tuple[int, int]]] | None]]
    client_names: NotRequired[list[str]]
    period_names: NotRequired[list[str]]


class PeriodLine(TypedDict):
    """The form of a line of ``period_accuracy.jsonl``."""

    round: int
    accuracy: list[tuple[int, int, float]]
    held: NotRequired[list[tuple[int, int, list[tuple[int, float]]]]]


class PeriodErrorLine(TypedDict):
    """The form of a line of ``period_error.jsonl``."""

    round: int
    error: list[tuple[int, int, float]]


class WeightsLine(TypedDict):
    """The form of a line of ``round_weights.jsonl``."""

    round: int
    present: float
    past: list[float]
    older: float


class ReferenceTable(TypedDict):
    """The form of a baseline in ``summary.json``."""

    title: str
    mean: float
    difference: float
    p: float | None


class BaselinesTable(TypedDict):
    """The form of the comparison with baselines in ``summary.json``."""

    measure: str
    mean: float | None
    periods: int
    references: dict[str, ReferenceTable]
    words: str


class AnyLine(TypedDict):
    """The form of every other line."""

    round: int


FORMS: dict[str, Any] = {
    "summary.json": dict[str, Number | BaselinesTable],
    "scenario.json": ScenarioTable,
    "period_accuracy.jsonl": PeriodLine,
    "period_error.jsonl": PeriodErrorLine,
    "round_weights.jsonl": WeightsLine,
}
"""The form of the content of a file, or of its lines."""
SUMMARY_WORDS = ("stopped_early",)
"""Entries of a summary that are words; all others are numbers."""
NUMBERS_ONLY = ("metrics.jsonl", "times.jsonl")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file; ``None`` if there is none.

    Raises:
        RunError: If it cannot be read, or has not the form that its name promises.
    """
    content = read_bytes(path)
    if content is None:
        return None
    try:
        found = json.loads(content)
        _check_form(found, path.name)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise RunError(f"{path} is damaged ({_one_line(error)}); {_advice(path)}") from error
    table: dict[str, Any] = found
    return table


def _check_form(found: Any, name: str) -> None:
    """Raise an error of msgspec for content that has not the form of its file."""
    if name == "summary.json" and isinstance(found, dict):
        msgspec.convert([found[key] for key in SUMMARY_WORDS if key in found], list[str])
        found = {key: value for key, value in found.items() if key not in SUMMARY_WORDS}
    msgspec.convert(found, FORMS.get(name, dict[str, Any]))


def read_bytes(path: Path) -> bytes | None:
    """Read a file; ``None`` if there is none.

    Raises:
        RunError: If there is something else of that name, or it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}"
        ) from error


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a record, without a last one that is still being written.

    Raises:
        RunError: If a line is damaged.
    """
    lines = whole_lines(path.name, read_bytes(path) or b"")
    for number, (_, table) in enumerate(lines, start=1):
        if table is None:
            msg = (
                f"{path}, line {number} is damaged; repair it with: chronofed resume {path.parent}"
            )
            raise RunError(msg)
        yield table


def whole_lines(name: str, content: bytes) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield the whole lines of the record ``name``, each with its table; ``None`` if it is damaged.

    Rounds must rise. Only engines are recorded at every start, so that their rounds may repeat.
    """
    before = -1
    for line in content.split(b"\n")[:-1]:
        table = parsed_line(name, line)
        if table is not None and table["round"] <= before and name != "engines.jsonl":
            table = None
        before = table["round"] if table else before
        yield line, table


def parsed_line(name: str, line: bytes) -> dict[str, Any] | None:
    """Parse a line of the record ``name``; ``None`` if it is damaged."""
    try:
        found = json.loads(line)
        msgspec.convert(found, FORMS.get(name, AnyLine))
        if name in NUMBERS_ONLY:
            msgspec.convert(found, dict[str, Number])
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None
    table: dict[str, Any] = found
    return table


def _advice(path: Path) -> str:
    if path.name == "summary.json":
        return f"repair it with: chronofed resume {path.parent}"
    # The name under which clients keep their states cannot be made up again.
    return "restore it from a copy" if path.name == "flower.json" else "remove it"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
