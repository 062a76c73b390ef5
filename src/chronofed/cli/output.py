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
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(renderable, highlight=False)


def note(line: str) -> None:
    """Say something that is not the result."""
    sys.stderr.write(f"chronofed: {line}\n")
