"""Curves, bands, scales and legends are those of the records."""

import numpy as np
import pytest

from chronofed.reports.styles import COLOURS
from tests.browser.marks import CHART, MAIN, hover, image, line, near, number, rgb, ticks

BLUE, ORANGE = (rgb(colour) for colour in COLOURS[:2])


def hide(page, *names):
    for name in names:
        page.locator("#curves .key", has_text=name).click()
    page.wait_for_timeout(100)


def zoom(page, low, high):
    page.get_by_label("first round shown").fill(str(low))
    page.get_by_label("last round shown").fill(str(high))
    page.get_by_label("last round shown").press("Enter")
    page.wait_for_timeout(100)


def shown(lines, name):
    """Mean and deviation that a tooltip has for a curve."""
    (found,) = [one for one in lines if one.startswith(f"{name}: ")]
    mean, _, deviation = found.partition(": ")[2].partition("% ± ")
    return number(mean), number(deviation)


@pytest.mark.parametrize("limits", [None, (80, 120)])
def test_axes_curves_and_bands_are_where_the_records_say(tab, two, limits):
    """The curve and its band, at the places that the marks of both axes give to the recorded numbers."""
    page, found = tab().open(two[0]), {group.name: group for group in two[1]}
    if limits:
        zoom(page, *limits)
    hide(page, "Core")
    canvas = page.locator(f"{CHART} canvas")
    rounds, values = ticks(canvas)
    if limits:
        assert limits[0] <= min(rounds) <= max(rounds) <= limits[1]
    else:
        assert max(rounds) > 120
    x, y, pixels = line(rounds), line(values), image(canvas)
    blue = near(pixels, BLUE)
    tinted = (pixels[..., 3] > 25) & (pixels[..., 2] - pixels[..., 0] > 60)
    curve = found["FedAvg"].curve("test_accuracy")
    here = [p for p in curve if (p[0] > 60 if limits is None else limits[0] < p[0] < limits[1])]
    for round_, mean, deviation in here:
        column = round(x(round_))
        level, reach = y(100 * mean), abs(y(100 * (mean + deviation)) - y(100 * mean))
        assert blue[round(level) - 2 : round(level) + 3, column - 1 : column + 2].any()
        if reach > 5:
            inside = [round(level + side * 0.7 * reach) for side in (-1, 1)]
            outside = [round(level + side * (1.2 * reach + 3)) for side in (-1, 1)]
            assert all(tinted[k, column] for k in inside)
            assert not any(tinted[k, column] for k in outside)
    assert sum(abs(y(100 * d) - y(0)) > 5 for _, _, d in here) >= 2  # some bands were wide enough
    lines = hover(page, CHART, 0.5)
    at = int(lines[0].split()[1])
    _, mean, deviation = next(point for point in curve if point[0] == at)
    assert shown(lines, "FedAvg") == pytest.approx((100 * mean, 100 * deviation), rel=2e-3)


def test_all_charts_follow_one_zoom(tab, two):
    page = tab().open(two[0])
    zoom(page, 80, 120)
    for chart in page.locator("#curves figure").filter(visible=True).all():
        rounds, _ = ticks(chart.locator("canvas"))
        assert 80 <= min(rounds) <= max(rounds) <= 120, chart.get_attribute("data-measure")


def test_dragging_on_the_first_chart_zooms_it(tab, two):
    page = tab().open(two[0])
    box = page.locator(f"{MAIN} .u-over").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()
    page.wait_for_timeout(100)
    rounds, _ = ticks(page.locator(f"{MAIN} canvas"))
    assert 76 <= min(rounds) <= max(rounds) <= 126


def test_the_first_chart_draws_every_seed_and_names_the_means(tab, two):
    page = tab(width=1440).open(two[0])
    canvas = page.locator(f"{MAIN} canvas")
    rounds, values = ticks(canvas)
    x, y, pixels = line(rounds), line(values), image(canvas)
    texts = canvas.evaluate("(c) => c.texts")
    for group, colour in zip(two[1], (BLUE, ORANGE), strict=True):
        for run in group.runs:
            places = zip(*run.series("test_accuracy"), strict=True)
            spots = [(round(x(t)), round(y(100 * a))) for t, a in places]
            hits = [near(pixels[v - 2 : v + 3, u], colour, 60, 80).any() for u, v in spots]
            assert np.mean(hits) > 0.8, run.label
        ((_, left, height),) = [text for text in texts if text[0] == group.name]
        mean = 100 * group.spread("last").mean
        ((written, _, _),) = [t for t in texts if t[2] == height and t[1] > left]
        assert float(written) == float(f"{mean:.4g}")
        end = pixels[round(y(mean)) - 3 : round(y(mean)) + 4, round(x(160)) + 3]
        assert near(end, colour, 90).any()  # the line that leads to the name


def test_a_legend_hides_its_own_curve(tab, two):
    page = tab().open(two[0])
    canvas = page.locator(f"{CHART} canvas")
    for k, (name, colour) in enumerate((("FedAvg", BLUE), ("Core", ORANGE))):
        key = page.locator("#curves .key", has_text=name)
        stroke = key.locator("line").evaluate("(e) => getComputedStyle(e).stroke")
        assert rgb(stroke) == colour
        before = [near(image(canvas), one).sum() for one in (BLUE, ORANGE)]
        hide(page, name)
        after = [near(image(canvas), one).sum() for one in (BLUE, ORANGE)]
        assert after[k] == 0
        assert after[1 - k] > 0.9 * before[1 - k] > 100
        hide(page, name)


def test_swatches_of_the_tooltip_have_the_colours_of_their_curves(tab, two):
    page = tab().open(two[0])
    hover(page, CHART, 0.5)
    for name, colour in (("FedAvg", BLUE), ("Core", ORANGE)):
        swatch = page.locator(".tooltip > div", has_text=name).locator(".swatch")
        assert rgb(swatch.evaluate("(e) => getComputedStyle(e).backgroundColor")) == colour


def test_the_table_of_a_chart_has_its_numbers(tab, two):
    page, found = tab().open(two[0]), two[1]
    page.locator(f"{CHART} details summary").click()
    row = page.locator(f"{CHART} tbody tr").last.inner_text().split("\t")
    expected = [group.curve("test_accuracy")[-1] for group in found]
    assert row == ["160", *(f"{100 * m:.4g} ± {float(f'{100 * d:.4g}'):g}" for _, m, d in expected)]


def test_topics_have_their_own_measures(tab, two):
    page = tab().open(two[0])
    costs = page.locator("#curves [data-topic=costs]")
    assert costs.locator("h3").inner_text() == "Traffic and privacy"
    kept = costs.locator("figure").evaluate_all("(all) => all.map((e) => e.dataset.measure)")
    assert kept == ["bytes_up", "bytes_down"]
    assert not page.locator("#curves [data-topic=drift]").is_visible()  # nothing was measured
