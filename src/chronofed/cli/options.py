"""Options that several commands share."""

import re
from argparse import ArgumentParser, Namespace
from pathlib import Path

from chronofed.core.bounds import LARGEST, LARGEST_COUNT, LARGEST_INTEGER
from chronofed.core.errors import SpecError

MOST_SEEDS = 10_000
"""Seeds of one range."""


def add_spec(parser: ArgumentParser) -> None:
    """Add the spec file and changes to it."""
    parser.add_argument("spec", type=Path, metavar="SPEC.toml", help="spec of the experiment")
    add_set(parser)


def add_set(parser: ArgumentParser) -> None:
    """Add changes to a spec."""
    parser.add_argument(
        "-s",
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the spec, e.g. -s train.lr=0.05; repeat for more",
    )


def add_runs(parser: ArgumentParser) -> None:
    """Add the runs that a command reads."""
    text = "run directories, or folders with runs below them"
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=text)


def add_engine(parser: ArgumentParser) -> None:
    """Add the engine and the number of workers."""
    text = "auto, the name of an engine, or package.module:Class (default: the spec's)"
    parser.add_argument("--engine", metavar="ENGINE", help=text)
    add_workers(parser, "the spec's")


def add_address(parser: ArgumentParser) -> None:
    """Add the address of a cluster."""
    text = (
        "Ray cluster that shares the clients of a run with --engine ray, or whole runs where there are many: "
        "auto, HOST:PORT, or local (default: this machine alone)"
    )
    parser.add_argument("--address", metavar="ADDRESS", help=text)


def add_workers(parser: ArgumentParser, default: str) -> None:
    """Add the number of workers."""
    text = f"clients to train in parallel (default: {default})"
    parser.add_argument("--workers", type=int, metavar="N", help=text)


def add_data(parser: ArgumentParser) -> None:
    """Add the folder of data files."""
    text = "folder to search for data first, before $CHRONOFED_DATA and the cache"
    parser.add_argument("--data", type=Path, metavar="DIR", help=text)


def add_samples(parser: ArgumentParser) -> None:
    """Add a picture of the samples in the clients' memories."""
    text = "draw the samples that clients keep at the end (.png, .svg or .pdf)"
    parser.add_argument("--samples", type=Path, metavar="FILE", help=text)


def add_track(parser: ArgumentParser) -> None:
    """Add a tracker."""
    text = "log evaluations to a tracker: tensorboard, or package.module:factory"
    parser.add_argument("--track", metavar="NAME", help=text)


def add_plot(parser: ArgumentParser) -> None:
    """Add a picture of the result."""
    text = "also draw the result (.png, .svg or .pdf)"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=text)


def add_quiet(parser: ArgumentParser) -> None:
    """Add a switch for progress bars."""
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def add_json(parser: ArgumentParser) -> None:
    """Add a switch for output that a script can read."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_trust_code(parser: ArgumentParser) -> None:
    """Add a permission to run code that a model names."""
    text = (
        "import the code of yours that builds the model; only if you trust where the model is from"
    )
    parser.add_argument("--trust-code", action="store_true", help=text)


def check_spec(path: Path) -> None:
    """Report a spec that cannot be read, before torch is imported to understand it.

    Raises:
        SpecError: If the file is missing or not TOML.
    """
    from chronofed.core import toml

    toml.load(path)


def check_counts(options: Namespace, *names: str, most: int = LARGEST_COUNT) -> None:
    """Refuse counts below 1, and above ``most``.

    Raises:
        SpecError: With the name of the option.
    """
    for name in names:
        count = getattr(options, name)
        if count is not None and not 1 <= count <= most:
            option = name.replace("_", "-")
            bound = "a number >= 1" if count < 1 else f"at most {most}"
            raise SpecError(f"--{option}: expected {bound}, not {count}")


def check_numbers(options: Namespace, *names: str) -> None:
    """Refuse numbers that are so large that their squares overflow, and NaN.

    Raises:
        SpecError: With the name of the option.
    """
    for name in names:
        number = getattr(options, name)
        if not -LARGEST <= number <= LARGEST:
            option = name.replace("_", "-")
            raise SpecError(f"--{option}: expected a finite number up to {LARGEST:g}, not {number}")


def parse_seeds(text: str) -> list[int]:
    """Read different seeds, as in ``0,1,2``, ``0-4`` or ``0-4,9``.

    Raises:
        SpecError: If the text is anything else.
    """
    seeds = [seed for part in text.split(",") for seed in _seed_range(part.strip(), text)]
    if min(seeds) < 0 or max(seeds) > LARGEST_INTEGER or len(set(seeds)) < len(seeds):
        raise SpecError(f"--seeds: expected different numbers from 0 to 10^18, not {text!r}")
    return seeds


def _seed_range(part: str, text: str) -> list[int]:
    """Read a seed, or a first and a last one."""
    found = re.fullmatch(r"(-?\d{1,30})(?:-(\d{1,30}))?", part, re.ASCII)
    if found is None:
        raise SpecError(f"--seeds: expected numbers such as 0,1,2 or 0-4, not {text!r}")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 0 <= last - first < MOST_SEEDS:
        raise SpecError(f"--seeds: expected a range of 1 to {MOST_SEEDS} seeds, not {part!r}")
    return list(range(first, last + 1))
