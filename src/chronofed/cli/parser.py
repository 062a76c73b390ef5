"""What can be typed. Nothing heavy is imported here: help must be quick."""

import argparse
import sys
from pathlib import Path
from typing import Any

EXIT_CODES = """\
exit codes:
  0 success                   4 run directory missing, in use or damaged
  1 unexpected failure        5 could not write (disk full, permissions)
  2 wrong usage or spec       6 an optional dependency is missing
  3 data missing or damaged   7 training diverged        130 interrupted
"""


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:  # noqa: ANN401
        from chronofed import __version__

        sys.stdout.write(f"chronofed {__version__}\n")
        parser.exit()


class _Commands:
    """Adds commands with the options that several of them share."""

    def __init__(self, root: argparse.ArgumentParser) -> None:
        self._parsers = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(self, name: str, text: str, *shared: str) -> argparse.ArgumentParser:
        parser = self._parsers.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        for option in shared:
            getattr(self, f"_{option}")(parser)
        return parser

    @staticmethod
    def _json(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    @staticmethod
    def _quiet(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")

    @staticmethod
    def _data(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--data", type=Path, metavar="DIR", help="folder of data files")

    @staticmethod
    def _samples(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--samples",
            type=Path,
            metavar="FILE",
            help="draw what clients keep in the end (.png, .svg or .pdf)",
        )

    @staticmethod
    def _spec(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("spec", type=Path, metavar="SPEC.toml", help="the specification")
        parser.add_argument(
            "-s",
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="change a setting, e.g. -s train.lr=0.05 (again for more)",
        )


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    root = argparse.ArgumentParser(
        prog="chronofed",
        description="Federated learning on data that keeps changing.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = _Commands(root)
    _add_running(commands)
    _add_looking(commands)
    return root


def _add_running(commands: _Commands) -> None:
    demo = commands.add(
        "demo", "compare FedAvg with CFL-Core-Set on embedded data", "quiet", "json"
    )
    demo.add_argument("--rounds", type=int, default=None, help="rounds of each run")
    demo.add_argument("--seeds", type=int, default=3, help="number of seeds (default 3)")
    demo.add_argument("-o", "--output", type=Path, metavar="DIR", help="where to put the runs")

    run = commands.add("run", "carry out an experiment", "spec", "data", "samples", "quiet", "json")
    run.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory of the run")

    resume = commands.add(
        "resume", "continue a run that was stopped", "data", "samples", "quiet", "json"
    )
    resume.add_argument("run", type=Path, metavar="RUN", help="directory of the run")


def _add_looking(commands: _Commands) -> None:
    compare = commands.add("compare", "compare runs in a table", "json")
    compare.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="directories of runs")
    compare.add_argument("--html", type=Path, metavar="FILE", help="write a report with curves")

    scenario = commands.add("scenario", "show who has which data when", "spec", "data", "json")
    scenario.add_argument("--rounds", type=int, default=12, help="rounds to show (default 12)")
    scenario.add_argument("--plot", type=Path, metavar="FILE", help="draw it (.png, .svg or .pdf)")

    data = commands.add("data", "list, find or download data sets", "data", "json", "quiet")
    data.add_argument("action", choices=("list", "get", "where"), help="what to do")
    data.add_argument("name", nargs="?", help="a data set (for get and where)")

    commands.add("methods", "list backbones, memories and weights, and what they need", "json")
    commands.add("doctor", "show versions, threads and the data found", "data", "json")
