"""Output of commands: results go to standard output, everything else to standard error."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from chronofed.core.errors import ChronofedError, cannot_write


class OutputClosedError(ChronofedError):
    """The reader of standard output is gone, as ``head`` is after some lines; that is no failure."""

    exit_code = 0


class _Output:
    """Standard output whose errors are the project's own, so that nobody takes them for others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._errors():
            self._stream.flush()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What is left in the buffer must not fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise OutputClosedError from error
            raise cannot_write(Path("standard output"), error) from error


@contextmanager
def safe_streams() -> Iterator[None]:
    """Make the standard streams accept everything: a closed one swallows it, an ASCII one shows ``?``.

    Raises:
        StorageError: If standard output cannot be written: the disk is full.
        OutputClosedError: If its reader is gone.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Open until the process ends.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    before = sys.stdout
    sys.stdout = cast(TextIO, _Output(before))
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        finally:
            sys.stdout = before


def emit_json(content: object) -> None:
    """Print a result for a script."""
    import json

    sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")


def emit(renderable: Any) -> None:
    """Print a result for a person."""
    from rich.console import Console

    Console(width=width()).print(renderable, highlight=False)


def width() -> int:
    """Return the characters in a line: those of ``COLUMNS``, the terminal's, or 120 in a file or a pipe."""
    import os

    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal or os.environ.get("COLUMNS") else 120


def plain() -> bool:
    """Return whether standard output takes ASCII alone."""
    try:
        "±━⠿".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def note(line: str) -> None:
    """Print a line that is not the result; if nobody can read it, that is no failure."""
    # A name in a message may have any characters, even those that steer a terminal.
    printable = "".join(c if c.isprintable() else "?" for c in " ".join(line.splitlines()))
    with suppress(OSError):
        sys.stderr.write(f"chronofed: {printable}\n")
        sys.stderr.flush()
