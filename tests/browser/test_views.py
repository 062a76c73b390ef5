"""What a reader chose is in the address; figures can be saved; a sweep is a setting against the score."""

import csv
import io
import re

import numpy as np
import pytest

from chronofed.reports.results_table import results_table
from tests.browser.marks import CHART, line, number
from tests.helpers.scenes import write_run


def test_the_address_leads_back_to_the_view(tab, two):
    page = tab().open(two[0])
    page.get_by_label("first round shown").fill("40")
    page.get_by_label("last round shown").fill("80")
    page.get_by_label("last round shown").press("Enter")
    page.locator("#curves .key", has_text="Core").click()
    page.locator("#curves-smoothing").press("ArrowRight")
    page.get_by_role("button", name="Accuracy", exact=True).click()
    page.locator("#round").evaluate("(e) => { e.value = 10; e.dispatchEvent(new Event('input')); }")
    page.locator("table.forgotten button").first.click()
    page.locator(".sorter", has_text="anytime").click()
    page.locator("#forgetting .anchor").click()
    sentence = page.locator(".answer").inner_text()
    detail = page.locator("figure[data-measure=pair] figcaption").inner_text()
    again = tab().open(page.url)
    assert again.get_by_label("first round shown").input_value() == "40"
    assert again.get_by_label("last round shown").input_value() == "80"
    assert again.locator("#curves-smoothing").input_value() == "1"
    pressed = again.locator("#curves .key", has_text="Core").get_attribute("aria-pressed")
    assert pressed == "false"
    assert again.locator(".answer").inner_text() == sentence
    assert "After round 44" in sentence
    assert again.locator("figure[data-measure=pair] figcaption").inner_text() == detail
    assert again.locator("th[aria-sort=descending]").inner_text().startswith("anytime")
    assert again.locator(".switch [aria-pressed=true]").inner_text() == "Accuracy"
    top = again.locator("#forgetting").bounding_box()["y"]
    assert -5 < top < 200  # the section that the link names
    again.get_by_role("button", name="Show all").click()
    assert "rounds=" not in again.url


def saved(page, box, kind, path):
    box.locator("details").first.evaluate("(e) => { e.open = true; }")
    with page.expect_download() as download:
        box.locator(".saves button", has_text=kind).click()
    download.value.save_as(path)
    return path


@pytest.mark.parametrize(
    "place", [CHART, "#forgetting figure", "#weights", ".differences", "#times"]
)
def test_every_figure_can_be_saved(tab, two, tmp_path, place):
    from PIL import Image

    page = tab(scheme="dark").open(two[0])
    box = page.locator(place).first
    box.locator(".as-table").first.wait_for()
    drawn = saved(page, box, "SVG", tmp_path / "a.svg").read_text()
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "NaN" not in drawn
    for dark in ("#e8ebef", "rgb(232, 235, 239)", "#a0a9b4", "rgb(160, 169, 180)"):
        assert dark not in drawn  # the colours of the page's own text
    assert len(re.findall(r"<(rect|path|circle|line)", drawn)) > 4
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', drawn)
    picture = Image.open(saved(page, box, "PNG", tmp_path / "a.png")).convert("RGB")
    assert picture.size == pytest.approx([2 * float(n) for n in size.groups()], abs=3)
    assert picture.getpixel((1, 1)) == (255, 255, 255)  # light, whatever the page is
    assert len(picture.getcolors(1 << 20)) > 8
    rows = list(csv.reader(io.StringIO(saved(page, box, "CSV", tmp_path / "a.csv").read_text())))
    table = box.locator("details table").first
    assert len(rows) == table.locator("tr").count()
    assert rows[0] == [cell.strip() for cell in table.locator("thead th").all_inner_texts()]


def test_a_saved_chart_has_the_curves_in_their_places(tab, two, tmp_path):
    page, found = tab().open(two[0]), two[1]
    drawn = saved(page, page.locator(CHART), "SVG", tmp_path / "a.svg").read_text()
    texts = re.findall(
        r'<text x="([-\d.]+)" y="([-\d.]+)"[^>]*text-anchor="end"[^>]*>([^<]+)<', drawn
    )
    y = line({number(t): float(level) - 4 for _, level, t in texts})
    paths = re.findall(r'd="(M[^"Z]*)" fill="none" stroke="([^"]+)" stroke-width="2.2"', drawn)
    for group, (path, _) in zip(found, paths, strict=False):
        levels = [float(point.split()[1]) for point in re.split("[ML]", path)[1:]]
        means = [100 * mean for _, mean, _ in group.curve("test_accuracy")]
        assert levels == pytest.approx([y(mean) for mean in means], abs=1)
    assert len({stroke for _, stroke in paths}) == 2


@pytest.mark.parametrize(("name", "kind"), [("CSV", "csv"), ("LaTeX", "latex")])
def test_the_table_can_be_saved(tab, two, tmp_path, name, kind):
    page = tab().open(two[0])
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save as {name}").click()
    download.value.save_as(tmp_path / "saved")
    assert (tmp_path / "saved").read_text() == getattr(results_table(two[1]), kind)()


def test_trials_of_one_name_are_named_by_what_differs(tab, made, serve, tmp_path):
    for n in (1, 2, 5):
        write_run(tmp_path / f"{n:08x}", "demo", memory=n, rounds=20, finish=n > 1)
    page = tab().open(made("named", sorted(tmp_path.iterdir()))[0])
    names = page.locator("table.summary .name").all_inner_texts()
    assert names == ["size 2", "size 5", "size 1 (stopped)"]  # those that finished first
    keys = page.locator("#curves .key").all_inner_texts()
    assert sorted(keys) == ["size 1 (stopped)", "size 2", "size 5"]
    assert not page.locator("body").get_by_text("0000000").count()
    # the first question is not asked about a run that did not finish
    assert "size 1" not in page.locator("#forgetting .answer").inner_text()
    live = tab().open(serve(tmp_path))
    titles = live.locator(".runs .title").all_inner_texts()
    assert sorted(text.strip() for text in titles) == [
        "size 1, seed 0", "size 2, seed 0", "size 5, seed 0",
    ]  # fmt: skip


def test_settings_of_many_experiments_are_rows(tab, made, tmp_path):
    paths = [write_run(tmp_path / str(n), f"m{n}", memory=n, rounds=8) for n in range(1, 9)]
    for count in (3, 8):
        page = tab().open(made(f"settings {count}", paths[:count])[0])
        table = page.locator("#settings table").first
        heads = table.locator("thead th").all_inner_texts()
        if count == 3:
            assert heads == ["setting", "m1", "m2", "m3"]
        else:
            assert heads == ["experiment", "method.memory.size"]
            assert table.locator("tbody tr").nth(4).inner_text().split() == ["m5", "5"]
    # all settings are built when they are opened, and what is alike is said once
    assert page.locator("#settings details table").count() == 0
    page.locator("#settings summary").click()
    rows = page.locator("#settings details tbody tr")
    rows.first.wait_for()
    texts = dict(row.inner_text().split("\t") for row in rows.all())
    assert texts["rounds"] == "8"
    assert texts["method.memory.size"] == "1; 2; 3; 4; 5; 6; … (8 values)"


def test_a_sweep_is_setting_against_score_with_the_ten_best(tab, made, tmp_path):
    sizes = [1, 2, 5, 10, 20, 50, 100, 200, 300, 400, 500, 600]
    paths = [
        write_run(
            tmp_path / str(n), f"size {n}", memory=n, rounds=20, periods=False, gain=n % 7 / 50
        )
        for n in sizes
    ]
    path = write_run(
        tmp_path / "half", "half", memory=7, rounds=20, periods=False, finish=False, gain=0.3
    )
    address, found = made("sweep", [*paths, path])
    *found, half = found
    page = tab(width=1440).open(address)
    assert page.locator("#sweep select").first.input_value() == "method.memory.size"
    scores = [100 * group.spread("anytime").mean for group in found]
    best = sorted(range(len(sizes)), key=lambda k: -scores[k])
    rows = page.locator(".best-ten tbody tr")
    assert rows.count() == 10
    names = [row.locator("td").first.inner_text().strip() for row in rows.all()]
    assert names == [found[k].name for k in best[:10]]
    texts = page.locator("#sweep svg.drawing text").evaluate_all(
        """(all) => all.map((e) => [
          e.textContent, +e.getAttribute('x'), +e.getAttribute('y'), e.getAttribute('text-anchor')])"""
    )
    numbers = [(number(t), x, y, a) for t, x, y, a in texts if re.fullmatch(r"[−\d.]+", t)]
    across = line({np.log10(t): x for t, x, _, anchor in numbers if anchor == "middle"})
    up = line({t: y - 4 for t, _, y, anchor in numbers if anchor == "end"})
    for k, group in enumerate(found):
        size = group.runs[0].spec["method"]["memory"]["size"]
        dot = page.locator(f'#sweep circle[data-group="{k}"]')
        assert float(dot.get_attribute("cx")) == pytest.approx(across(np.log10(size)), abs=1)
        assert float(dot.get_attribute("cy")) == pytest.approx(up(scores[k]), abs=1)
        assert (dot.get_attribute("fill") == "var(--accent)") == (k in best[:10])
    stopped = page.locator(f'#sweep circle[data-group="{len(found)}"]')
    assert stopped.get_attribute("fill") == "none"  # the best score, of a run that did not finish
    assert half.name not in page.locator(".best-ten").inner_text()
    page.locator("#sweep select").last.select_option("last_forgetting")
    lowest = min(found, key=lambda group: group.spread("last_forgetting").mean)
    assert rows.first.locator("td").first.inner_text().strip() == lowest.name
