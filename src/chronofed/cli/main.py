"""Entry point: build the parser, run the command, turn errors into one line and an exit code.

Every module of this package that is not in ``HELPERS`` is a command of its own name. Modules import torch,
numpy, rich and the rest of the package inside their functions, so that help and usage errors are quick.
"""

import argparse
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from chronofed.cli.output import OutputClosedError, note, safe_streams
from chronofed.core.errors import ChronofedError, SpecError, UserCodeError

INTERRUPTED = 130
LONGEST_MESSAGE = 400
TERMINATED = 143
HELPERS = {"__init__", "logs", "main", "many", "options", "output", "progress"}
GROUPS = ("experiments", "results", "settings and data", "theory", "this machine")

EXIT_CODES = """\
exit codes:
  0 success                    4 run directory missing, in use or damaged
  1 unexpected failure         5 cannot write: disk full, permissions
  2 wrong usage or spec        6 optional dependency missing
  3 data missing or damaged    7 training diverged
  8 your own code failed     130, 143 interrupted, terminated
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
    try:
        with safe_streams():
            return _run(arguments)
    except OutputClosedError as error:
        return error.exit_code
    except ChronofedError as error:
        return _report(error)
    except KeyboardInterrupt as stop:
        return _interrupted(stop)
    except Exception as error:
        from chronofed.core.user_code import as_user_error, user_traceback

        if not user_traceback(error):
            raise
        return _report(as_user_error(error))


def _run(arguments: Sequence[str] | None) -> int:
    """Parse the command line and run the command."""
    known = commands()
    options = build_parser(known).parse_args(arguments)
    from chronofed.cli.logs import print_logs

    print_logs()
    # A spec may name models and methods that the user keeps in the working folder.
    with suppress(FileNotFoundError):
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
    # The same command again continues most of what it began; `run` knows better when there is a run.
    options.continue_with = sys.argv[1:] if arguments is None else list(arguments)
    with terminated_by_signal(), _say_how_to_continue(options):
        return known[options.command].run(options)


def _report(error: ChronofedError) -> int:
    """Print an error in one line, below it the user's own frames if there are some; return the exit code."""
    note(str(error))
    if isinstance(error, UserCodeError) and error.frames:
        with suppress(OSError):
            sys.stderr.write(f"{error.frames}\n")
    return error.exit_code


@contextmanager
def _say_how_to_continue(options: argparse.Namespace) -> Iterator[None]:
    """Add the command that goes on to an interrupt."""
    try:
        yield
    except KeyboardInterrupt as stop:
        again = shlex.join(["chronofed", *options.continue_with])
        raise KeyboardInterrupt(str(stop), again) from stop


def _interrupted(stop: KeyboardInterrupt) -> int:
    name, again = stop.args if len(stop.args) == 2 else ("", "")
    word, code = ("terminated", TERMINATED) if name else ("interrupted", INTERRUPTED)
    more = f"; continue with: {again}" if again else ""
    with suppress(OSError):
        sys.stderr.write(f"\nchronofed: {word}{more}\n")
    return code


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """Turn SIGTERM into an exception while a command runs, so that it removes its temporary files."""

    def stop(number: int, *_: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    # Only the main thread may handle signals; a program that calls us from another one has its own ways.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def commands() -> dict[str, Command]:
    """Import all commands; they come by group, then by name."""
    # A glob, since pkgutil imports half of the standard library.
    names = {file.stem for file in Path(__file__).parent.glob("*.py")} - HELPERS
    found = {name: cast(Command, import_module(f"chronofed.cli.{name}")) for name in names}
    return dict(sorted(found.items(), key=lambda item: (GROUPS.index(item[1].GROUP), item[0])))


def build_parser(known: Mapping[str, Command] | None = None) -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    known = commands() if known is None else known
    root = _Parser(
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


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        shown = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."
        raise SpecError(f"{shown.removeprefix('argument ')}; see: {self.prog} --help")


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from chronofed import __version__

        sys.stdout.write(f"chronofed {__version__}\n")
        parser.exit()
