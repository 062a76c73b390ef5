"""A recipe's results as files: Markdown, CSV and LaTeX tables, figures, and a page of claims."""

import csv
import io
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from chronofed.core.atomic import make_folder, write_atomic
from chronofed.core.errors import IncompatibleError
from chronofed.methods.method import check
from chronofed.reports.best import best_row
from chronofed.reports.claims import claims_page
from chronofed.reports.figures import canvas
from chronofed.reports.figures.curves import draw_curves, draw_pairs, draw_two_axes
from chronofed.reports.groups import Group
from chronofed.reports.results import Results
from chronofed.reports.spread import Spread, rounded
from chronofed.reports.tables import TextTable
from chronofed.studies.recipe import Recipe
from chronofed.studies.views import Applicability, Curves, Pairs, SummaryTable, TwoAxes
from chronofed.training.measures import columns

PICTURES = ("png", "svg")


def table(results: Results) -> TextTable:
    """Tabulate the numbers of a recipe: ours with the deviation over seeds, and the paper's beside them."""
    view = results.recipe.view
    if isinstance(view, Applicability):
        return applicability(results.recipe)
    if isinstance(view, TwoAxes):
        measures = zip((view.left, view.right), view.factors, view.labels, strict=True)
        return _summary(results, view.label, [(m, f, label, 3) for m, f, label in measures])
    if isinstance(view, SummaryTable):
        return _published(results, view)
    accuracy = [("best5", 100.0, "mean of best 5 %", 2), ("last", 100.0, "last %", 2)]
    losses = [
        ("last_test_loss", 1.0, "test loss", 3),
        ("last_seen_loss", 1.0, "loss on past data", 3),
    ]
    return _summary(results, "method", [*accuracy, *losses, ("falls", 1.0, "falls", 1)])


def _published(results: Results, view: SummaryTable) -> TextTable:
    recipe, columns = results.recipe, results.headings
    headings = ["method"]
    for column in columns:
        headings += [column or "here", f"{column} (paper)" if column else "paper"][
            : 2 if recipe.paper else 1
        ]
    rows = []
    for row in recipe.rows:
        cells = [row]
        for column in columns:
            cells.append(_cell_text(results, row, column, view))
            if recipe.paper:
                number = recipe.published(row, column)
                cells.append("" if number is None else rounded(number, view.digits))
        rows.append(cells)
    return TextTable(recipe.title, headings, rows, _best(results, view))


def _best(results: Results, view: SummaryTable) -> frozenset[tuple[int, int]]:
    """Find the best cell of every column, if its lead over the second is resolved."""
    recipe, best = results.recipe, set()
    lower = any(c.key == view.measure and c.better == "lower" for c in columns())
    for number, column in enumerate(results.headings):
        values = [results.values(row, column, view.measure) for row in recipe.rows]
        row = best_row(values, lower)
        if row is not None:
            best.add((row, 1 + number * (2 if recipe.paper else 1)))
    return frozenset(best)


def _cell_text(results: Results, row: str, column: str, view: SummaryTable) -> str:
    if (row, column) in results.refusals:
        return "refused"
    found = results.group(row, column).spread(view.measure)
    if found is None and (row, column) in results.failures:
        return "failed"
    return _number(found, view.factor, view.digits, len(results.seeds))


def _number(found: Spread | None, factor: float, digits: int, seeds: int) -> str:
    return "-" if found is None else found.text(digits, factor, seeds)


def _summary(
    results: Results, label: str, measures: Sequence[tuple[str, float, str, int]]
) -> TextTable:
    """Tabulate several numbers of every row and column."""
    rows = []
    for column, row in product(results.headings, results.recipe.rows):
        group = results.group(row, column)
        seeds = len(results.seeds)
        numbers = [_number(group.spread(m), f, digits, seeds) for m, f, _, digits in measures]
        rows.append([f"{row}, {column}" if column else row, *numbers])
    return TextTable(results.recipe.title, [label, *(name for _, _, name, _ in measures)], rows)


def applicability(recipe: Recipe) -> TextTable:
    """Tabulate which methods can serve which scenarios, from what they declare to need."""
    verdicts = {}
    for cell in recipe.cells("cpu", [0]):
        dataset = cell.experiment.data.load(None, 0)
        verdicts[cell.row, cell.column] = "yes"
        if cell.experiment.method.backbone.fixed_data:
            verdicts[cell.row, cell.column] = "no: needs data that stay the same"
        try:
            check(cell.experiment.method, cell.experiment.scenario.on(dataset, 0))
        except IncompatibleError:
            verdicts[cell.row, cell.column] = "no: needs clients that come back"
    rows = [[row, *(verdicts[row, column] for column in recipe.columns)] for row in recipe.rows]
    return TextTable(recipe.title, ["method", *recipe.columns], rows, words=1 + len(recipe.columns))


def write(results: Results, name: str, folder: Path) -> str:
    """Write a recipe's files below a folder.

    Args:
        results: Its runs.
        name: The name of the files.
        folder: The folder to write to.

    Returns:
        The recipe's part of a page, in Markdown.

    Raises:
        StorageError: If something cannot be written.
    """
    recipe, numbers = results.recipe, table(results)
    make_folder(folder)
    pictures = draw(results, folder / name)
    data = numbers.csv() if not isinstance(recipe.view, Curves | Pairs) else _curves(results)
    write_atomic(folder / f"{name}.csv", data.encode())
    write_atomic(folder / f"{name}.tex", numbers.latex().encode())
    parts = [
        f"## {recipe.title}\n",
        f"`{name}`; in the paper: *{recipe.label}*.\n",
        numbers.markdown(),
    ]
    parts += [f"![{recipe.title}]({path.name})\n" for path in pictures[:1]]
    parts += [_provenance(results)] if results.runs else []
    if recipe.claims:
        parts.append(claims_page(results.findings()))
    page = "\n".join(parts)
    write_atomic(folder / f"{name}.md", page.encode())
    return page


def _provenance(results: Results) -> str:
    """Describe the runs behind the numbers in a sentence."""
    runs = sum(map(len, results.runs.values()))
    others = {"failed": results.failures.total(), "missing": results.missing}
    missing = "".join(f", {count} {word}" for word, count in others.items() if count)
    rounds = max(v.summary["rounds"] for found in results.runs.values() for v in found.values())
    return (
        f"Scale `{results.scale}`: {runs} runs of up to {rounds} rounds{missing}, seeds "
        f"{', '.join(map(str, results.seeds))}, {results.seconds / 60:.0f} minutes of running time together; "
        f"{'; '.join(results.hardware)}.{_basis(results)}\n"
    )


def _basis(results: Results) -> str:
    """Say on how many test rows evaluations were, where that differs; empty where it does not."""
    views = [view for found in results.runs.values() for view in found.values()]
    counts = {int(m["test_samples"]) for v in views for m in v.history if "test_samples" in m}
    if len(counts) < 2:
        return ""
    few, every = min(counts), max(counts)
    return (
        f" Evaluations are on {few} test rows, the same for all methods of a seed, and on all {every} after "
        "the last round; a mean of the best five is of both kinds."
    )


def draw(results: Results, stem: Path) -> list[Path]:
    """Draw a recipe that is a figure, once for every format; nothing without runs."""
    view = results.recipe.view
    if not results.runs or not isinstance(view, Curves | TwoAxes | Pairs):
        return []
    return [_draw(results, stem.with_name(f"{stem.name}.{kind}")) for kind in PICTURES]


def _draw(results: Results, path: Path) -> Path:
    view, rows = results.recipe.view, results.recipe.rows
    if isinstance(view, Curves):
        panels = {c: [results.group(row, c) for row in rows] for c in results.headings}
        return draw_curves(
            panels,
            view.measure,
            view.label,
            path,
            factor=view.factor,
            window=view.window,
            zoom=view.zoom,
        )
    (column,) = results.headings
    groups = [results.group(row, column) for row in rows]
    if isinstance(view, Pairs):
        return draw_pairs(groups, path)
    assert isinstance(view, TwoAxes)
    groups = [group for group in groups if group.runs]
    left, right = (
        [_scaled(group, measure, factor) for group in groups]
        for measure, factor in zip((view.left, view.right), view.factors, strict=True)
    )
    over = [float(group.name) for group in groups]
    return draw_two_axes(over, left, right, (view.label, *view.labels), path)


def _scaled(group: Group, measure: str, factor: float) -> tuple[float, float]:
    """Scale a number for an axis; a single run has no error bar."""
    found = group.spread(measure)
    if found is None:
        return float("nan"), float("nan")
    return factor * found.mean, factor * (found.deviation or 0.0)


def _curves(results: Results) -> str:
    """Write the curves that are drawn as CSV: mean and deviation over seeds of every evaluation."""
    view = results.recipe.view
    measures = (
        [view.measure]
        if isinstance(view, Curves)
        else [f"{data}_{what}" for what in ("loss", "accuracy") for data in ("test", "seen")]
    )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["column", "row", "measure", "round", "mean", "deviation"])
    for column, row, measure in product(results.headings, results.recipe.rows, measures):
        for round_, mean, deviation in results.group(row, column).curve(measure):
            spread = "" if math.isnan(deviation) else f"{deviation:.6g}"
            writer.writerow([column, row, measure, round_, f"{mean:.6g}", spread])
    return out.getvalue()


def check_drawing(folder: Path) -> None:
    """Refuse before any work if matplotlib is missing."""
    make_folder(folder)
    canvas.check(folder / "x.png", "drawing figures")
