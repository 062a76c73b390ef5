"""The command ``chronofed paper``."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.many import run_cells, tell_failures
from chronofed.cli.options import (
    add_address,
    add_data,
    add_json,
    add_quiet,
    check_counts,
    parse_seeds,
)
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.errors import ChronofedError, RunError, SpecError

if TYPE_CHECKING:
    from chronofed.reports.results import Results
    from chronofed.studies.recipe import Recipe
    from chronofed.studies.study import Study
    from chronofed.studies.verdicts import Finding
    from chronofed.studies.views import Commands

GROUP = "experiments"
HELP = "reproduce the paper's tables and figures"

RUNS = Path("runs") / "paper"
ARCHIVE = "cells.jsonl.xz"
SCALES = ("cpu", "paper")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "list all with their costs, run some, or write a report from finished runs; export these runs to a "
    text += "small file, import them elsewhere"
    actions = ("list", "run", "report", "export", "import")
    parser.add_argument("action", choices=actions, help=text)
    text = "tables and figures (see: chronofed paper list), your own recipe files, or: all; for import: files"
    parser.add_argument("names", nargs="*", metavar="NAME", help=text)
    text = "cpu (minutes a run) or paper (as published) (default cpu)"
    parser.add_argument("--scale", default="cpu", help=text)
    text = "seeds of every run, e.g. 0,1,2 (default: the recipe's)"
    parser.add_argument("--seeds", metavar="LIST", help=text)
    text = "runs to work on in parallel (default: one for each core)"
    parser.add_argument("--jobs", type=int, metavar="N", help=text)
    text = "device of the models, e.g. cuda (default cpu)"
    parser.add_argument("--device", default="cpu", help=text)
    text = f"folder of the runs (default {RUNS})"
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="DIR", help=text)
    text = f"folder of the report (default: RUNS/report); of an export the file (default: RUNS/{ARCHIVE})"
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help=text)
    for add in (add_address, add_data, add_quiet, add_json):
        add(parser)


def run(options: Namespace) -> int:
    """List, run or report the paper's tables and figures, or carry their runs elsewhere."""
    if options.action == "import":
        return _import(options)
    check_counts(options, "jobs")
    from chronofed.studies.load_recipe import load

    command = {"list": _list, "run": _run, "report": _report, "export": _export}[options.action]
    return command(options, [(Path(name).stem, load(name)) for name in _names(options)])


def _names(options: Namespace) -> list[str]:
    from chronofed.studies.load_recipe import shipped

    if not options.names and options.action == "run":
        raise SpecError(f"paper run: name one or more of {', '.join(shipped())}; or all")
    return shipped() if options.names in ([], ["all"]) else options.names


def _list(options: Namespace, recipes: "Sequence[tuple[str, Recipe]]") -> int:
    from chronofed.reports.tables import TextTable

    rows = [[name, recipe.title, *_costs(recipe, options)] for name, recipe in recipes]
    if options.json:
        heads = ["name", "title", "runs", *SCALES]
        emit_json([dict(zip(heads, row, strict=True)) for row in rows])
        return 0
    title = "Tables and figures of the paper, and their costs on 2 cores"
    heads = ["name", "what", "runs", *(f"{scale} scale" for scale in SCALES)]
    emit(TextTable(title, heads, rows, words=2).terminal())
    return 0


def _costs(recipe: "Recipe", options: Namespace) -> list[str]:
    known = [scale for scale in SCALES if scale in recipe.scales]
    seeds = {scale: _seeds(recipe, scale, options) for scale in known}
    runs = "-" if _instant(recipe) else str(len(list(recipe.cells(known[0], seeds[known[0]]))))
    hours = {s: _duration(recipe.scale(s).hours * len(some) / 3) for s, some in seeds.items()}
    return [runs, *(hours.get(scale, "-") for scale in SCALES)]


def _seeds(recipe: "Recipe", scale: str, options: Namespace) -> Sequence[int]:
    """Return the seeds that are asked for, or the recipe's own."""
    return recipe.scale(scale).seeds if options.seeds is None else parse_seeds(options.seeds)


def _duration(hours: float) -> str:
    if hours > 48:
        return f"{hours / 24:.0f} days"
    return f"{hours:.0f} h" if hours > 2 else f"{60 * hours:.0f} min" if hours else "seconds"


def _instant(recipe: "Recipe") -> bool:
    """Tell if nothing is trained."""
    from chronofed.studies.views import Applicability, Commands

    return isinstance(recipe.view, Commands | Applicability)


def _run(options: Namespace, recipes: "Sequence[tuple[str, Recipe]]") -> int:
    from dataclasses import replace

    import msgspec

    from chronofed.runs.built import check_device
    from chronofed.studies.study import Study
    from chronofed.studies.views import Commands

    check_device(options.device)
    study = Study(options.runs, options.data)
    trained = [(name, recipe) for name, recipe in recipes if not _instant(recipe)]
    cells = [
        replace(cell, experiment=msgspec.structs.replace(cell.experiment, device=options.device))
        for _, recipe in trained
        for cell in recipe.cells(options.scale, _seeds(recipe, options.scale, options))
    ]
    outcome = run_cells(study, cells, options)
    for name, recipe in recipes:
        if isinstance(recipe.view, Commands):
            _call(name, recipe.view, recipe, options.runs)
    found = [(name, _results(recipe, study, options)) for name, recipe in recipes]
    _show(found, options)
    return tell_failures(outcome)


def _export(options: Namespace, recipes: "Sequence[tuple[str, Recipe]]") -> int:
    """Write the finished runs of some recipes to one file."""
    from chronofed.core.atomic import make_folder, write_atomic
    from chronofed.studies.archive import pack
    from chronofed.studies.study import Study

    cells = [
        cell
        for _, recipe in recipes
        if not _instant(recipe)
        for cell in recipe.cells(options.scale, _seeds(recipe, options.scale, options))
    ]
    content, count = pack(Study(options.runs), cells)
    if not count:
        raise RunError(f"nothing to export: none of these runs is finished in {options.runs}")
    path = options.output or options.runs / ARCHIVE
    make_folder(path.parent)
    write_atomic(path, content)
    note(f"{count} runs and refusals, {len(content) / 1000:.0f} kB: {path}")
    return 0


def _import(options: Namespace) -> int:
    """Add the runs of exported files to a folder."""
    from chronofed.runs.json_files import read_bytes
    from chronofed.studies.archive import unpack
    from chronofed.studies.study import Study

    if not options.names:
        raise SpecError("paper import: name one or more exported files")
    for name in options.names:
        content = read_bytes(Path(name))
        if content is None:
            raise RunError(f"{name}: there is no such file")
        try:
            found = unpack(content, Study(options.runs))
        except RunError as error:
            raise RunError(f"{name}: {error}") from error
        note(
            f"{name}: {found.added} runs added, {found.known} known already, {found.refused} refusals: "
            f"{options.runs}"
        )
    return 0


def _results(recipe: "Recipe", study: "Study", options: Namespace) -> "Results":
    from chronofed.reports.results import Results

    return Results(recipe, study, options.scale, _seeds(recipe, options.scale, options))


def _call(name: str, view: "Commands", recipe: "Recipe", folder: Path) -> None:
    """Save what other commands print and draw."""
    import io
    import tempfile
    from contextlib import redirect_stdout

    from chronofed.cli.main import main as chronofed
    from chronofed.core import toml
    from chronofed.core.atomic import make_folder, write_atomic

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


def _show(found: "Sequence[tuple[str, Results]]", options: Namespace) -> None:
    from chronofed.reports.claims import findings_table
    from chronofed.reports.paper import table
    from chronofed.studies.views import Commands

    if options.json:
        emit_json([_plain(name, results) for name, results in found])
        return
    for name, results in found:
        if isinstance(results.recipe.view, Commands):
            sys.stdout.write(_printed(name, options.runs))
            continue
        emit(table(results).terminal())
        if results.recipe.claims:
            emit(findings_table(results.findings()).terminal())


def _printed(name: str, folder: Path) -> str:
    path = folder / f"{name}.txt"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _plain(name: str, results: "Results") -> dict[str, object]:
    from chronofed.reports.claims import evidence
    from chronofed.reports.paper import table
    from chronofed.studies.verdicts import corrected, multiplicity

    shown, findings = table(results), results.findings()
    return {
        "name": name,
        "title": results.recipe.title,
        "table": [dict(zip(shown.headings, row, strict=True)) for row in shown.rows],
        "claims": [
            {
                "claim": one.claim.says,
                "verdict": one.verdict,
                "evidence": evidence(one),
                "p": one.p,
                "p_corrected": p,
                "resolvable": one.resolvable,
                "seeds_needed": one.seeds_needed,
            }
            for one, p in zip(findings, corrected(findings), strict=True)
        ],
        "multiplicity": multiplicity(findings),
        "missing": results.missing,
    }


def _report(options: Namespace, recipes: "Sequence[tuple[str, Recipe]]") -> int:
    """Write files from finished runs alone."""
    from chronofed.reports.claims import write_claims
    from chronofed.reports.paper import check_drawing, write
    from chronofed.studies.study import Study
    from chronofed.studies.views import Commands

    study = Study(options.runs)
    folder = options.output or options.runs / "report"
    found = [(name, _results(recipe, study, options)) for name, recipe in recipes]
    check_drawing(folder)
    written: list[str] = []
    claims: list[Finding] = []
    for name, results in found:
        recipe = results.recipe
        if isinstance(recipe.view, Commands):
            done = _copy(name, recipe, options.runs, folder)
        elif done := bool(results.runs) or _instant(recipe):
            write(results, name, folder)
            claims += results.findings()
        if done:
            written.append(name)
        else:
            note(f"{name}: nothing in {options.runs}; run it with: chronofed paper run {name}")
    write_claims(claims, folder)
    note(f"{len(written)} tables and figures, and {len(claims)} claims: {folder}")
    return 0


def _copy(name: str, recipe: "Recipe", runs: Path, folder: Path) -> bool:
    """Copy what a command printed and drew, if it was run."""
    from chronofed.core.atomic import write_atomic

    text, picture = _printed(name, runs), runs / f"{name}.png"
    if not text:
        return False
    page = f"## {recipe.title}\n\n`{name}`; in the paper: *{recipe.label}*.\n\n```text\n{text}```\n"
    if picture.exists():
        write_atomic(folder / picture.name, picture.read_bytes())
        page += f"\n![{recipe.title}]({picture.name})\n"
    write_atomic(folder / f"{name}.md", page.encode())
    return True
