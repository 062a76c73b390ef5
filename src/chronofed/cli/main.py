"""Entry point: parse, call the command, turn errors into one line and an exit code."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from chronofed.cli.parser import parser
from chronofed.errors import ChronofedError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, otherwise the error's own."""
    options = parser().parse_args(arguments)
    sys.path.append(os.getcwd())  # where users keep the models and methods that a spec may name
    try:
        command = import_module(f"chronofed.cli.{options.command}")
        code: int = command.main(options)
    except ChronofedError as error:
        sys.stderr.write(f"chronofed: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\nchronofed: interrupted; continue with: chronofed resume RUN\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe went away: nothing is wrong with us
        sys.stderr.close()
        return 0
    return code
