"""Numbers in tables stay on one line: ``78.54 ± 0.74`` is one thing to read."""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

NUMBER = re.compile(r"[+−-]?[\d.,]+( ?%| ?[a-zA-Z]{1,3})?( ± [\d.,]+)?( ?\(.{1,12}\))?")


def mark(_app: Sphinx, doctree: nodes.document, _name: str) -> None:
    """Give cells that hold a number the class ``number``."""
    for cell in doctree.findall(nodes.entry):
        if NUMBER.fullmatch(cell.astext().strip()):
            cell["classes"].append("number")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Look at all cells before pages are written."""
    app.connect("doctree-resolved", mark)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
