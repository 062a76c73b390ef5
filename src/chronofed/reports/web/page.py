"""Pages: a report to send to a colleague (one file, no network), and the assets of the live page."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from chronofed.core.atomic import write_atomic
from chronofed.reports.groups import Group
from chronofed.reports.payload import build_payload
from chronofed.reports.result_columns import result_columns
from chronofed.reports.styles import COLOURS, DARK
from chronofed.reports.web.packed import packed

PARTS = (
    "uplot.js",
    "base.js",
    "packed.js",
    "view.js",
    "picture.js",
    "curves.js",
    "bigchart.js",
    "heatmap.js",
    "areas.js",
    "forgetting.js",
    "overview.js",
    "scenario.js",
    "weights.js",
    "costs.js",
    "sweep.js",
    "sections.js",
)
PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title>
<style>
$style
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
<div class="top"><p class="soft provenance">$title · $provenance</p><div class="tools"></div></div>
<h1>$headline</h1>
$verdict
</header>
<main id="main">
<noscript>$table</noscript>
</main>
<footer>Made by chronofed. Curves are drawn by uPlot (MIT licence).</footer>
<div id="spoken" class="unseen" aria-live="polite"></div>
<script id="content" type="application/json">$content</script>
<script>$script</script>
</body>
</html>
""")


def write_report(groups: Sequence[Group], path: Path, title: str) -> None:
    """Write the report of some experiments."""
    write_atomic(path, render(groups, title).encode())


def report_title(groups: Sequence[Group]) -> str:
    """Return the title of a report that has been given none."""
    if len(groups) == 1:
        return groups[0].name
    return f"Comparison of {len({group.experiment or group.name for group in groups})} experiments"


def render(groups: Sequence[Group], title: str) -> str:
    """Render the report as HTML; names that users chose stay text."""
    content = build_payload(groups, title)
    about = content["overview"]
    code = script("report.js")
    return PAGE.substitute(
        title=escape(title),
        provenance=escape(about["provenance"]),
        headline=escape(about["verdict"]["headline"]),
        verdict=_verdict(about["verdict"]),
        policy="default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src '{_digest(code)}'",
        style=style(),
        table=_table(groups),
        content=embedded(packed(content)),
        script=code,
    )


def _verdict(about: Mapping[str, Any]) -> str:
    """Render the sentences below the headline, which also stand where no script runs."""
    kinds = [(kind, about[kind]) for kind in ("clear", "unresolved") if about[kind]]
    kinds += [("failed", reason) for reason in about["failures"]]
    kinds += [("remark", remark) for remark in about["remarks"]]
    return "\n".join(f'<p class="verdict {kind}">{escape(text)}</p>' for kind, text in kinds)


def embedded(content: object) -> str:
    """Encode JSON for use inside a page: no character in it can end the element or begin another."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def script(*last: str) -> str:
    """Join all code of a page; the file that starts it comes last."""
    return "\n".join(asset(name) for name in (*PARTS, *last))


def style() -> str:
    """Build the style sheet; curves have the colours of the figures."""
    light, dark = (
        " ".join(f"--c{k}: {colour};" for k, colour in enumerate(colours))
        for colours in (COLOURS, DARK)
    )
    ramps = "".join(
        f".ramp-{name} {{ background: linear-gradient(to right, {_stops(name)}); }} "
        f':root[data-theme="dark"] .ramp-{name} {{ background: linear-gradient(to right, '
        f"{_stops(name, dark=True)}); }} @media (prefers-color-scheme: dark) {{ "
        f":root:not([data-theme]) .ramp-{name} {{ background: linear-gradient(to right, "
        f"{_stops(name, dark=True)}); }} }}\n"
        for name in ("more", "less", "known")
    )
    return (
        f"{asset('uplot.css')}\n{asset('page.css')}\n:root {{ {light} }}\n"
        f':root[data-theme="dark"] {{ {dark} }}\n'
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ {dark} }} }}\n{ramps}"
    )


def _stops(name: str, dark: bool = False) -> str:
    """Read the colours of a scale from the style sheet."""
    found = [part.split(";")[0].split() for part in asset("page.css").split(f"--ramp-{name}:")[1:]]
    return ", ".join(found[1 if dark else 0])


@cache
def asset(name: str) -> str:
    """Read a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(code: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def _table(groups: Sequence[Group]) -> str:
    """Render the summary for viewers that run no script."""
    shown = result_columns(groups)
    headings = ("experiment", "runs x rounds", *(column.heading for column in shown))
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    rows = [
        f"<tr><th>{escape(group.name)}</th><td>{group.size}</td>"
        + "".join(f"<td>{group.text(column)}</td>" for column in shown)
        + "</tr>"
        for group in groups
    ]
    return (
        "<section><h2>Summary</h2><p>Curves and maps need scripts, which this viewer does not run.</p>"
        f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div></section>'
    )
