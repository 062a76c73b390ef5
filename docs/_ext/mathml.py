"""Formulas as MathML, converted at build time by docutils: pages need no network and no script."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

LOG = logging.getLogger(__name__)
REWRITES = {  # what docutils knows under another name, or sets badly
    r"\\dots\b": r"\\ldots",
    r"\\[bB]igg?(?![a-zA-Z])": "",
    # It puts the index of an accented letter below the letter; an empty group takes it instead.
    r"(\\(?:bar|hat|tilde|dot|vec)\s*(?:\{[^{}]*\}|\\[a-z]+|\w))(?=[_^])": r"\1{}",
}


def convert(formula: str, block: bool) -> str:
    """One formula as MathML."""
    for pattern, better in REWRITES.items():
        formula = re.sub(pattern, better, formula)
    return str(tex2mathml(formula, as_block=block))


def _show(writer: HTML5Translator, node: nodes.Element, block: bool) -> None:
    """Write a formula; LaTeX itself, with a warning, where it cannot be converted."""
    try:
        writer.body.append(convert(node.astext(), block))
    except MathError as error:
        advice = "use simpler commands, or add a rewrite in docs/_ext/mathml.py"
        LOG.warning("no MathML for %r: %s; %s", node.astext(), error, advice, location=node)
        writer.body.append(f"<code>{writer.encode(node.astext())}</code>")
    raise nodes.SkipNode


def inline(writer: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula in the text."""
    _show(writer, node, block=False)


def display(writer: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula on a line of its own."""
    _show(writer, node, block=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
