"""What the theme leaves out for screen readers and the keyboard: levels, names of parts, code that scrolls."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

CHANGES = (
    ('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="All pages">'),
    ('<aside class="toc-drawer">', '<aside class="toc-drawer" aria-label="On this page">'),
    (
        '<aside class="toc-drawer no-toc">',
        '<aside class="toc-drawer no-toc" aria-label="No contents">',
    ),
    ("<pre>", '<pre tabindex="0">'),
    ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
)
# A list of descriptions alone.
PARAMETERS = re.compile(r"<dl>\n((?:<dd>(?:(?!</?d[dl]>).)*</dd>\n)+)</dl>")


def complete(folder: Path) -> None:
    """Change all pages in a folder; what was changed before stays."""
    for path in folder.rglob("*.html"):
        if path.name == "demo-report.html":
            continue
        text = path.read_text(encoding="utf-8")
        for old, new in CHANGES:
            text = text.replace(old, new)
        # A corner of a table without words is no heading.
        text = re.sub(r'<th class="head([^"]*)"><p></p></th>', r'<td class="head\1"></td>', text)
        # Parameters of a long signature are a list without terms.
        text = PARAMETERS.sub(_listed, text)
        path.write_text(text, encoding="utf-8")


def _listed(found: re.Match[str]) -> str:
    items = found[1].replace("<dd>", "<li>").replace("</dd>", "</li>")
    return f'<ul class="sig-parameters">\n{items}</ul>'


def after(app: Sphinx, exception: Exception | None) -> None:
    """Change the pages when all are written."""
    if exception is None and app.builder.format == "html":
        complete(Path(app.outdir))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Wait for the end of the build."""
    app.connect("build-finished", after)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
