"""Everybody can read the pages: rules of axe-core, the keyboard, print, small files."""

from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def axe():
    """The code of axe-core, which comes with a package of the extra ``browser``."""
    package = pytest.importorskip("axe_playwright_python", reason="needs the extra 'browser'")
    return files(package).joinpath("axe.min.js").read_text()


def findings(chromium, axe, address, scheme, prepare=lambda page: None):
    """Return what axe-core finds on a page."""
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(address)
    prepare(page)
    page.evaluate(axe)
    found = page.evaluate("() => axe.run()")["violations"]
    context.close()
    return [(v["id"], v["nodes"][0]["html"]) for v in found]


def drawn(page):
    page.wait_for_selector("body[data-ready]")


def opened(page):
    """With a table of every kind open: of a drawing, a map, curves and weights."""
    drawn(page)
    for place in (".differences", ".class-map", "#curves", "#weights"):
        page.locator(f"{place} details").first.evaluate("(e) => { e.open = true; }")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_report(chromium, axe, two, scheme):
    assert findings(chromium, axe, two[0], scheme, opened) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_live_page(chromium, axe, serve, runs, scheme):
    assert findings(chromium, axe, serve(runs), scheme, drawn) == []


def test_a_report_prints_on_three_pages(tab, two):
    page = tab().open(two[0])
    page.emulate_media(media="print")
    assert page.pdf(format="A4").count(b"/Type /Page\n") <= 3
