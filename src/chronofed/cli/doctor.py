"""The command ``chronofed doctor``."""

from argparse import ArgumentParser, Namespace
from typing import Any

from chronofed.cli.options import add_data, add_json
from chronofed.cli.output import emit, emit_json

GROUP = "this machine"
HELP = "show versions, threads, optional parts and the data found"

EXTRAS = {
    "matplotlib": "plot",
    "pyarrow": "parquet",
    "optuna": "sweep",
    "flwr": "flower",
    "ray": "ray",
    "tensorboard": "track",
    "onnx": "onnx",
    "playwright": "browser",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_data(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    """Show what this installation has: versions, threads, optional parts and data."""
    from rich.table import Table

    report = examine(options)
    if options.json:
        emit_json(report)
        return 0
    table = Table("what", "found", header_style="bold", show_lines=False)
    for section, content in report.items():
        for name, value in content.items():
            table.add_row(f"{section}: {name}", str(value))
        table.add_section()
    emit(table)
    return 0


def examine(options: Namespace) -> dict[str, dict[str, Any]]:
    """Collect everything that may explain a problem."""
    from importlib.util import find_spec

    import torch

    from chronofed.data import registry
    from chronofed.runs.environment import environment

    about = environment()
    packages: dict[str, Any] = about.pop("packages")
    about.pop("command")
    return {
        "machine": about
        | {"torch threads": torch.get_num_threads(), "cuda": torch.cuda.is_available()},
        "package": packages,
        "extra": {
            extra: module if find_spec(module) else f"missing: pip install 'chronofed[{extra}]'"
            for module, extra in EXTRAS.items()
        },
        "data": {
            name: str(registry.locate(name, options.data) or f"missing: chronofed data get {name}")
            for name in registry.CATALOGUE
        },
    }
