"""The command ``chronofed nqm``."""

import math
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json, add_plot, add_quiet
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.bounds import LARGEST
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    from rich.table import Table

    from chronofed.theory import nqm
    from chronofed.theory.nqm.model import Array, Model

GROUP = "theory"
HELP = "find the best learning rates on the noisy quadratic model"

MARKS = {"likely": "=", "near": "~", "no": "≠", "": ""}
# About 1.5 GB with preset P1.
MOST_SEEDS = 2000
# Learning rates x seeds of one algorithm in one setting.
MOST_RUNS = 400_000


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "choice of what the paper leaves open: size, steps, rounds, start (default p1)"
    parser.add_argument("--preset", choices=("p1", "p2", "p3"), default="p1", help=text)
    text = "some of the paper's eight settings, e.g. BRD-SL-SC (default: all)"
    parser.add_argument("--settings", nargs="+", metavar="NAME", help=text)
    text = "number of seeds (default 100)"
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help=text)
    text = "learning rates as LOW:HIGH:COUNT or a list (default 0.01:0.4:40)"
    parser.add_argument("--lr-grid", metavar="GRID", help=text)
    for add in (add_plot, add_quiet, add_json):
        add(parser)


def run(options: Namespace) -> int:
    """Find the best learning rates of all algorithms in the paper's settings; draw the curves if asked for."""
    from chronofed.reports.figures import canvas
    from chronofed.reports.figures.nqm import draw_panels

    if options.plot:
        canvas.check(options.plot, "drawing curves")
    models, lrs = _models(options.preset, options.settings), _grid(options.lr_grid)
    if not 1 <= options.seeds <= min(MOST_SEEDS, MOST_RUNS // len(lrs)):
        most = min(MOST_SEEDS, MOST_RUNS // len(lrs))
        raise SpecError(f"--seeds: expected a number from 1 to {most}, not {options.seeds}")
    cells = _swept(models, lrs, options)
    if options.plot:
        note(f"figure: {draw_panels(cells, options.plot)}")
    if options.json:
        emit_json([_plain(cell) for cell in cells])
        return 0
    title = f"Noisy quadratic model, preset {options.preset}: {options.seeds} seeds, {len(lrs)} learning rates"
    emit(_table(cells, title))
    emit(
        "loss: mean of |Aw + B| over the last fifth of the rounds.\n"
        "single seeds: range of the learning rates that 9 in 10 single seeds choose by their final loss.\n"
        "paper: = a single seed may well choose it; ~ unlikely, but within 10 % of the best loss; ≠ neither.\n"
        "smoothness: quadratic variation of the loss in the last fifth; less is smoother.\n"
        "tolerated: largest learning rate with at most twice the best loss. stable: ends below the start."
    )
    return 0


def _models(preset: str, names: list[str] | None) -> "dict[str, Model]":
    from chronofed.theory import nqm

    known = nqm.settings(nqm.PRESETS[preset])
    chosen = [name.upper() for name in names or known]
    for name in chosen:
        if name not in known:
            raise SpecError(f"--settings: unknown setting {name!r}; known: {', '.join(known)}")
    return {name: known[name] for name in chosen}


def _grid(text: str | None) -> "Array":
    """Read learning rates: ``LOW:HIGH:COUNT``, or a list with commas."""
    import numpy as np

    from chronofed.core.config import shown
    from chronofed.theory.nqm.sweep import LRS

    if text is None:
        return LRS
    try:
        if ":" in text:
            low, high, count = text.split(":")
            rates = np.linspace(float(low), float(high), min(int(count), MOST_RUNS + 1))
        else:
            rates = np.array([float(part) for part in text.split(",")])
    except ValueError:
        rates = np.zeros(0)
    if not (len(rates) and ((rates > 0) & (rates <= LARGEST)).all() and len(rates) <= MOST_RUNS):
        msg = (
            "--lr-grid: expected LOW:HIGH:COUNT or a list such as 0.01,0.1, all above 0 and at most "
            f"{LARGEST:g}, and at most {MOST_RUNS} of them, not {shown(text)}"
        )
        raise SpecError(msg)
    return np.unique(rates)


def _swept(models: "dict[str, Model]", lrs: "Array", options: Namespace) -> "list[nqm.Cell]":
    from rich.console import Console
    from rich.progress import track

    from chronofed.theory import nqm

    console = Console(stderr=True)
    return list(
        track(
            nqm.sweep(models, lrs=lrs, seeds=options.seeds),
            "runs",
            total=len(models) * len(nqm.ALGORITHMS),
            console=console,
            transient=True,
            disable=options.quiet or options.json or not console.is_terminal,
        )
    )


def _plain(cell: "nqm.Cell") -> dict[str, object]:
    """Return a cell as JSON; infinite numbers, which JSON lacks, become null."""
    from dataclasses import fields

    plain = {f.name: getattr(cell, f.name) for f in fields(cell) if f.name != "curve"}
    plain |= {k: None for k, v in plain.items() if isinstance(v, float) and not math.isfinite(v)}
    curve = {
        name: [loss if math.isfinite(loss) else None for loss in losses]
        for name, losses in zip(("low", "median", "high"), cell.curve.tolist(), strict=True)
    }
    return {**plain, "agreement": cell.agreement, "curve": curve}


def _table(cells: "list[nqm.Cell]", title: str) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("setting", no_wrap=True)
    table.add_column("algorithm", no_wrap=True)
    for heading in (
        "best lr",
        "single seeds",
        "paper",
        "loss",
        "final loss",
        "smoothness",
        "tolerated",
        "stable",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    before = None
    for cell in cells:
        if before not in (None, cell.setting):
            table.add_section()
        paper = "" if cell.paper is None else f"{cell.paper:g} {MARKS[cell.agreement]}"
        low, high = cell.likely
        table.add_row(
            cell.setting if cell.setting != before else "",
            cell.algorithm,
            f"{cell.lr:.3g}",
            f"{low:.3g} - {high:.3g}",
            paper,
            f"{cell.loss:.3g}",
            f"{cell.final:.3g}" + ("" if cell.deviation is None else f" ± {cell.deviation:.2g}"),
            f"{cell.variation:.1e}",
            f"{cell.tolerated:.3g}",
            f"{cell.stable:.3g}",
        )
        before = cell.setting
    return table
