"""Everybody can read the pages: rules of axe-core, the keyboard, print, small files."""

from importlib.resources import files
from pathlib import Path

import pytest

from chronofed.runs import RunDirectory
from tests.helpers.scenes import write_run

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
def test_axe_finds_nothing_in_other_reports(chromium, axe, made, tmp_path, scheme):
    """A sweep with runs that did not finish; and one run that failed."""
    sizes = range(1, 13)
    paths = [
        write_run(tmp_path / str(n), "trial", memory=n, rounds=20, finish=n % 3, periods=n < 3)
        for n in sizes
    ]
    assert findings(chromium, axe, made(f"swept {scheme}", paths)[0], scheme, drawn) == []
    failed = write_run(tmp_path / "failed", "one", rounds=1, finish=False, periods=False)
    RunDirectory(failed).fail("round 1: the model is no longer finite")
    assert findings(chromium, axe, made(f"failed {scheme}", [failed])[0], scheme, drawn) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_live_page(chromium, axe, serve, runs, scheme):
    assert findings(chromium, axe, serve(runs), scheme, drawn) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("runs", ["two methods", "one run"])
def test_a_report_prints_on_three_pages(tab, made, two, tmp_path, runs, scheme):
    address = (
        two[0] if runs == "two methods" else made("alone", [write_run(tmp_path / "a", "A")])[0]
    )
    page = tab(scheme=scheme).open(address)
    page.emulate_media(media="print")
    assert page.pdf(format="A4").count(b"/Type /Page\n") <= 3


DOCS = ROOT / "docs" / "_build" / "html"
# Every kind of page: landing, pictures, prose with code, tables of results, generated reference, formulas, an
# example, the changelog, the index, and the search.
PAGES = (
    "index", "gallery", "howto/see", "howto/flower", "results/index", "results/all-methods",
    "results/paper", "reference/cli", "reference/api", "reference/spec", "theory", "glossary",
    "examples/rain", "changelog", "genindex", "search",
)  # fmt: skip


@pytest.fixture(scope="session")
def docs():
    if not (DOCS / "index.html").is_file():
        pytest.skip("needs the documentation: make docs")
    return DOCS


def few(page):
    """Leave every 20th entry of the reference: axe-core needs many minutes for 1,000 of one kind."""
    page.evaluate(
        """() => {
        document.querySelectorAll("section > dl.py").forEach((e, k) => { if (k % 20) e.remove(); });
        for (const link of document.querySelectorAll(".toc-tree a[href^='#']"))
          if (link.hash && !document.getElementById(link.hash.slice(1))) link.closest("li").remove();
        }"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_in_the_documentation(chromium, axe, docs, page, scheme):
    assert findings(chromium, axe, (docs / f"{page}.html").as_uri(), scheme, few) == []


@pytest.mark.parametrize("width", [390, 1280])
def test_numbers_of_the_documentation_stay_on_one_line(tab, docs, width):
    page = tab(width=width).page
    page.goto((docs / "results" / "index.html").as_uri())
    cells = page.locator("td.number")
    assert cells.count() >= 8
    heights = cells.evaluate_all(
        """(all) => all.map((e) => { const text = document.createRange(); text.selectNodeContents(e);
        return text.getBoundingClientRect().height / parseFloat(getComputedStyle(e).fontSize); })"""
    )
    assert max(heights) < 1.8  # of a line that is 1 to 1.5 letters high
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_the_landing_page_opens_a_real_report(tab, docs):
    page = tab().page
    page.goto((docs / "index.html").as_uri())
    picture = page.locator("article img").first
    assert picture.evaluate("(e) => e.complete && e.naturalWidth") > 1000
    assert picture.get_attribute("alt")
    page.get_by_role("link", name="Open this report").click()
    page.wait_for_selector("body[data-ready]")
    assert page.locator("h1").inner_text().startswith("CFL-Core-Set forgets 11.4 points less")
    assert Path(page.url.removeprefix("file://")).stat().st_size < 1_000_000


def test_a_report_works_with_the_keyboard_alone(tab, two):
    """Every control is reached by Tab, in the order of the page, and shows that it is."""
    page = tab().open(two[0])
    wanted = page.evaluate(
        """() => [...document.querySelectorAll('a[href], button, select, input, summary, [tabindex="0"]')]
        .filter((e) => e.checkVisibility() && !e.disabled).length"""
    )
    seen, unmarked = set(), []
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => { const e = document.activeElement, look = getComputedStyle(e);
            e.dataset.seen ??= String(document.querySelectorAll('[data-seen]').length);
            const marked = look.outlineStyle !== 'none' && parseFloat(look.outlineWidth) > 0;
            return [e.dataset.seen, e.tagName, marked]; }"""
        )
        seen.add(found[0])
        unmarked += [found[1]] if found[1] != "BODY" and not found[2] else []
    assert len(seen) >= wanted
    assert unmarked == []
