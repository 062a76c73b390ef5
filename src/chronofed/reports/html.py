"""A report to send to a colleague: one file, no network, no script."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from chronofed.records.atomic import write_atomic
from chronofed.reports.chart import Line, chart
from chronofed.reports.terminal import COLUMNS, cell
from chronofed.reports.view import Group

CHARTS = (
    ("test_accuracy", "Accuracy on the global test set"),
    ("test_loss", "Loss on the global test set"),
    ("seen_accuracy", "Accuracy on training data seen so far"),
    ("seen_loss", "Loss on training data seen so far"),
)

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d9dee3; --page: #ffffff;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b5489a; --c4: #b58900; --c5: #3b9ddd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebee; --soft: #9ba5af; --line: #343b43;
  --page: #14181d; --c0: #56b4e9; --c1: #ff8c42; --c2: #2ec4a0; --c3: #e28bc5; --c4: #e6c200; --c5: #9ad1ff; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1000px; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.05rem; margin: 0 0 .3rem; }
p.soft, footer { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin: 1.2rem 0; }
th, td { text-align: right; padding: .45rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 1.6rem; }
svg { width: 100%; height: auto; } .grid { stroke: var(--line); } .tick { fill: var(--soft); font-size: 11px; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; } .band { opacity: .16; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .5em; }
""" + "".join(
    f".curve.c{k} {{ stroke: var(--c{k}); }} .band.c{k} {{ fill: var(--c{k}); }} "
    f".swatch.c{k} {{ background: var(--c{k}); }}\n"
    for k in range(6)
)


def write_report(groups: Sequence[Group], path: Path, title: str) -> None:
    """Write the report of some experiments."""
    write_atomic(path, render(groups, title).encode())


def render(groups: Sequence[Group], title: str) -> str:
    """The report as HTML text; whatever users named their runs is escaped."""
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_subtitle(groups))}</p>',
        _table(groups),
        '<div class="charts">',
        *(_figure(groups, key, caption) for key, caption in CHARTS),
        "</div>",
        "<footer><p>best-5: mean of the five best evaluations (the paper's figure, optimistic); "
        "last: after the last round; anytime: mean over all evaluations. "
        "Bands: one deviation over seeds. Made by chronofed.</p>"
        "</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _subtitle(groups: Sequence[Group]) -> str:
    runs = sum(len(group.runs) for group in groups)
    data = sorted({_data_name(run.spec) for group in groups for run in group.runs})
    return f"{len(groups)} experiments, {runs} runs, on {', '.join(data)}"


def _data_name(spec: dict[str, dict[str, str]]) -> str:
    data = spec["data"]
    return data.get("name") or Path(data["path"]).name


def _table(groups: Sequence[Group]) -> str:
    head = "".join(f"<th>{h}</th>" for h in ("experiment", "runs", *(c.heading for c in COLUMNS)))
    rows = [
        f'<tr><td><span class="swatch c{k % 6}"></span>{escape(group.name)}</td><td>{len(group.runs)}</td>'
        + "".join(f"<td>{cell(group, column)}</td>" for column in COLUMNS)
        + "</tr>"
        for k, group in enumerate(groups)
    ]
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _figure(groups: Sequence[Group], key: str, caption: str) -> str:
    lines = [Line(group.name, group.curve(key)) for group in groups]
    if not any(line.points for line in lines):
        return ""
    return f"<section><h2>{caption}</h2>{chart(lines, caption)}</section>"
