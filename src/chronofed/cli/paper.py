"""The command ``chronofed paper``."""

import io
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import msgspec

from chronofed.cli.output import emit, emit_json, note
from chronofed.cli.progress import overall
from chronofed.cli.values import seeds_of
from chronofed.engines.base import usable_cores
from chronofed.errors import ChronofedError, SpecError
from chronofed.experiments import toml
from chronofed.experiments.recipe import Cell, Recipe, load, shipped
from chronofed.experiments.runner import Progress
from chronofed.experiments.study import Outcome, Study
from chronofed.experiments.views import ApplicabilityView, CommandView
from chronofed.records.atomic import make_folder, write_atomic
from chronofed.reports.paper import check_drawing, findings_table, table, write
from chronofed.reports.results import Finding, Results
from chronofed.reports.tables import TextTable


def main(options: Namespace) -> int:
    """List, run or report the paper's tables and figures."""
    command = {"list": _list, "run": _run, "report": _report}[options.action]
    return command(options, [(Path(name).stem, load(name)) for name in _names(options)])


def _names(options: Namespace) -> list[str]:
    if not options.names and options.action == "run":
        raise SpecError(f"paper run: which? One or more of: {', '.join(shipped())}; or: all")
    return shipped() if options.names in ([], ["all"]) else options.names


def _list(options: Namespace, recipes: Sequence[tuple[str, Recipe]]) -> int:
    rows = [[name, recipe.title, *_costs(recipe, options)] for name, recipe in recipes]
    if options.json:
        heads = ["name", "title", "runs", "cpu", "paper"]
        emit_json([dict(zip(heads, row, strict=True)) for row in rows])
        return 0
    title = "Tables and figures of the paper, and their costs on 2 cores"
    heads = ["name", "what", "runs", "cpu scale", "paper scale"]
    emit(TextTable(title, heads, rows, words=2).terminal())
    return 0


def _costs(recipe: Recipe, options: Namespace) -> list[str]:
    seeds = {scale: _seeds(recipe, scale, options) for scale in ("cpu", "paper")}
    runs = "-" if _instant(recipe) else str(len(list(recipe.cells("cpu", seeds["cpu"]))))
    hours = [recipe.scale(scale).hours * len(some) / 3 for scale, some in seeds.items()]
    return [runs, *map(_duration, hours)]


def _seeds(recipe: Recipe, scale: str, options: Namespace) -> Sequence[int]:
    """Those that are asked for, or the recipe's own."""
    return recipe.scale(scale).seeds if options.seeds is None else seeds_of(options.seeds)


def _duration(hours: float) -> str:
    if hours > 48:
        return f"{hours / 24:.0f} days"
    return f"{hours:.0f} h" if hours > 2 else f"{60 * hours:.0f} min" if hours else "seconds"


def _instant(recipe: Recipe) -> bool:
    """Whether nothing is trained."""
    return isinstance(recipe.view, CommandView | ApplicabilityView)


def _run(options: Namespace, recipes: Sequence[tuple[str, Recipe]]) -> int:
    jobs = options.jobs or usable_cores()
    if jobs < 1:
        raise SpecError(f"--jobs: expected a number >= 1, not {jobs}")
    study = Study(options.runs, options.data)
    trained = [(name, recipe) for name, recipe in recipes if not _instant(recipe)]
    cells = [
        replace(cell, experiment=msgspec.structs.replace(cell.experiment, device=options.device))
        for _, recipe in trained
        for cell in recipe.cells(options.scale, _seeds(recipe, options.scale, options))
    ]
    outcome = _carry_out(study, cells, jobs, options.quiet or options.json)
    for name, recipe in recipes:
        if isinstance(recipe.view, CommandView):
            _call(name, recipe.view, recipe, options.runs)
    found = [(name, _results(recipe, study, options)) for name, recipe in recipes]
    _show(found, options)
    for name, reason in {cell.experiment.name: why for cell, why in outcome.refused}.items():
        note(f"refused: {name}: {reason}")
    for cell, error in outcome.failed:
        note(f"failed: {cell.name}: {error}")
    if outcome.failed:
        note("the same command tries again what failed, and nothing else")
    return 1 if outcome.failed else 0


def _results(recipe: Recipe, study: Study, options: Namespace) -> Results:
    return Results(recipe, study, options.scale, _seeds(recipe, options.scale, options))


def _carry_out(study: Study, cells: Sequence[Cell], jobs: int, quiet: bool) -> Outcome:
    """Run all cells under one bar; a line for each that ends, where there is no bar."""
    chosen: list[Cell] = []
    with overall(quiet) as bar:

        def announce(found: Sequence[Cell]) -> None:
            chosen.extend(found)
            bar.begin(len(found))

        def watch(number: int, at: Progress) -> None:
            bar.move(number, chosen[number].name, at)

        return study.carry_out(cells, jobs, watch, note, announce)


def _call(name: str, view: CommandView, recipe: Recipe, folder: Path) -> None:
    """Keep what other commands print and draw."""
    from chronofed.cli.main import main as chronofed

    make_folder(folder)
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as place:
        spec = Path(place) / "spec.toml"
        spec.write_text(toml.dumps(recipe.base), encoding="utf-8")
        for number, arguments in enumerate(view.commands):
            words = [str(spec) if word == "SPEC" else word for word in arguments]
            drawn = ["--plot", str(folder / f"{name}.png")] if view.figure and not number else []
            with redirect_stdout(printed):
                code = chronofed([*words, *drawn])
            if code:
                raise ChronofedError(f"{name}: chronofed {' '.join(arguments)} failed")
    write_atomic(folder / f"{name}.txt", printed.getvalue().encode())


def _show(found: Sequence[tuple[str, Results]], options: Namespace) -> None:
    if options.json:
        emit_json([_plain(name, results) for name, results in found])
        return
    for name, results in found:
        if isinstance(results.recipe.view, CommandView):
            sys.stdout.write(_printed(name, options.runs))
            continue
        emit(table(results).terminal())
        if results.recipe.claims:
            emit(findings_table(results.findings()).terminal())


def _printed(name: str, folder: Path) -> str:
    path = folder / f"{name}.txt"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _plain(name: str, results: Results) -> dict[str, object]:
    shown = table(results)
    return {
        "name": name,
        "title": results.recipe.title,
        "table": [dict(zip(shown.headings, row, strict=True)) for row in shown.rows],
        "claims": [
            {"claim": finding.claim.says, "verdict": finding.verdict}
            for finding in results.findings()
        ],
        "missing": results.missing,
    }


def _report(options: Namespace, recipes: Sequence[tuple[str, Recipe]]) -> int:
    """Write files from records alone."""
    study = Study(options.runs)
    folder = options.output or options.runs / "report"
    check_drawing(folder)
    written, claims = [], list[Finding]()
    for name, recipe in recipes:
        results = _results(recipe, study, options)
        if isinstance(recipe.view, CommandView):
            done = _copy(name, recipe, options.runs, folder)
        elif done := bool(results.runs) or _instant(recipe):
            write(results, name, folder)
            claims += results.findings()
        if done:
            written.append(name)
        else:
            note(f"{name}: nothing in {options.runs}; run it with: chronofed paper run {name}")
    page = findings_table(claims).markdown()
    write_atomic(folder / "claims.md", f"# Claim by claim\n\n{page}".encode())
    note(f"{len(written)} tables and figures, and {len(claims)} claims: {folder}")
    return 0


def _copy(name: str, recipe: Recipe, runs: Path, folder: Path) -> bool:
    """Take over what a command printed and drew, if it was run."""
    text, picture = _printed(name, runs), runs / f"{name}.png"
    if not text:
        return False
    page = f"## {recipe.title}\n\n`{name}`; in the paper: *{recipe.label}*.\n\n```text\n{text}```\n"
    if picture.exists():
        write_atomic(folder / picture.name, picture.read_bytes())
        page += f"\n![{recipe.title}]({picture.name})\n"
    write_atomic(folder / f"{name}.md", page.encode())
    return True
