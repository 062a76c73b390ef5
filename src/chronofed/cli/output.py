"""Output of commands: results go to standard output, everything else to standard error."""

import sys
from typing import Any


def emit_json(content: object) -> None:
    """Print a result for a script."""
    import json

    sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")


def emit(renderable: Any) -> None:
    """Print a result for a person."""
    from rich.console import Console

    Console(width=width()).print(renderable, highlight=False)


def width() -> int:
    """Return the characters in a line: the terminal's, or 120 in a file or a pipe."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else 120


def note(line: str) -> None:
    """Print a line that is not the result."""
    sys.stderr.write(f"chronofed: {line}\n")
