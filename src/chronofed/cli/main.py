"""Entry point: build the parser, run the command, turn errors into one line and an exit code.

Every module of this package that is not in ``HELPERS`` is a command of its own name. Modules import torch,
numpy, rich and the rest of the package inside their functions, so that help and usage errors are quick.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from chronofed.core.errors import ChronofedError

INTERRUPTED = 130
HELPERS = {"__init__", "logs", "main", "options", "output", "progress"}
GROUPS = ("experiments", "results", "settings and data", "theory", "this machine")

EXIT_CODES = """\
exit codes:
  0 success                    4 run directory missing, in use or damaged
  1 unexpected failure         5 cannot write: disk full, permissions
  2 wrong usage or spec        6 optional dependency missing
  3 data missing or damaged    7 training diverged        130 interrupted
"""


class Command(Protocol):
    """A module with a command."""

    GROUP: str
    """Heading of the command in the overview, one of ``GROUPS``."""

    HELP: str
    """Summary in lower case, without a full stop."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, options: argparse.Namespace) -> int:
        """Run the command and return its exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, otherwise the error's own."""
    known = commands()
    options = build_parser(known).parse_args(arguments)
    from chronofed.cli.logs import print_logs

    print_logs()
    # A spec may name models and methods that the user keeps in the working folder.
    sys.path.append(os.getcwd())
    try:
        return known[options.command].run(options)
    except ChronofedError as error:
        sys.stderr.write(f"chronofed: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\nchronofed: interrupted; continue with: chronofed resume RUN\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output closed the pipe, as `head` does. That is no error.
        sys.stderr.close()
        return 0


def commands() -> dict[str, Command]:
    """Import all commands; they come by group, then by name."""
    # A glob, since pkgutil imports half of the standard library.
    names = {file.stem for file in Path(__file__).parent.glob("*.py")} - HELPERS
    found = {name: cast(Command, import_module(f"chronofed.cli.{name}")) for name in names}
    return dict(sorted(found.items(), key=lambda item: (GROUPS.index(item[1].GROUP), item[0])))


def build_parser(known: Mapping[str, Command] | None = None) -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    known = commands() if known is None else known
    root = argparse.ArgumentParser(
        prog="chronofed",
        usage="chronofed [-h] [--version] COMMAND ...",
        description=f"Federated learning on data that keeps changing.\n\n{_overview(known)}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parsers = root.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog="chronofed", help=argparse.SUPPRESS
    )
    for name, command in known.items():
        description = f"{command.HELP[0].upper()}{command.HELP[1:]}."
        command.add_arguments(parsers.add_parser(name, description=description))
    return root


def _overview(known: Mapping[str, Command]) -> str:
    """List the commands of each group; ``chronofed COMMAND --help`` has the rest."""
    lines: list[str] = []
    for group in GROUPS:
        members = {name: module for name, module in known.items() if group == module.GROUP}
        lines += [f"{group}:", *(f"  {name:<10}{m.HELP}" for name, m in members.items()), ""]
    return "\n".join([*lines, "help on a command: chronofed COMMAND --help"])


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from chronofed import __version__

        sys.stdout.write(f"chronofed {__version__}\n")
        parser.exit()
