"""The command ``chronofed doctor``."""

from argparse import Namespace
from importlib.util import find_spec
from typing import Any

import torch
from rich.table import Table

from chronofed.cli.output import emit, emit_json
from chronofed.experiments.environment import environment
from chronofed.tasks import library

EXTRAS = {
    "matplotlib": "plot",
    "pyarrow": "parquet",
    "tensorboard": "track",
    "playwright": "browser",
}


def main(options: Namespace) -> int:
    """Show what this installation has: versions, threads, optional parts and data."""
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
    """Everything that may explain a problem."""
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
            name: str(library.locate(name, options.data) or f"missing: chronofed data get {name}")
            for name in library.CATALOGUE
        },
    }
