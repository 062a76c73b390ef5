"""Formulas as MathML, converted at build time by docutils: pages need no network and no script."""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

LOG = logging.getLogger(__name__)
ALIASES = {r"\dots": r"\ldots"}  # commands that docutils knows by another name only


def convert(formula: str, block: bool) -> str:
    """One formula as MathML; the formula itself, with a warning, where that is impossible."""
    for command, known in ALIASES.items():
        formula = formula.replace(command, known)
    return str(tex2mathml(formula, as_block=block))


def _show(writer: HTML5Translator, node: nodes.Element, block: bool) -> None:
    try:
        writer.body.append(convert(node.astext(), block))
    except MathError as error:
        advice = "use simpler commands, or give an alias in docs/_ext/mathml.py"
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
