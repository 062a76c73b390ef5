"""What commands print: results to standard output, everything else to standard error."""

import json
import sys
from typing import Any

from rich.console import Console


def emit_json(content: object) -> None:
    """Print a result for a script."""
    sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")


def emit(renderable: Any) -> None:  # noqa: ANN401 - anything that rich can draw
    """Print a result for a person."""
    Console(width=width()).print(renderable, highlight=False)


def width() -> int:
    """Characters in a line: the terminal's, or 120 in a file or a pipe."""
    console = Console()
    return console.width if console.is_terminal else 120


def note(line: str) -> None:
    """Say something that is not the result."""
    sys.stderr.write(f"chronofed: {line}\n")
