"""The first screen against statistics that are computed here, from the summaries alone."""

import json
import math
import re

import numpy as np
import pytest

from tests.browser.marks import line, number
from tests.helpers.scenes import write_run

# Student's quantile for a two-sided 95 % interval of three pairs.
T = 4.302652729911275
NAMES = {
    "last_forgetting": "forgetting",
    "anytime": "anytime",
    "last": "last",
    "best5": "mean of best 5",
}


@pytest.fixture(scope="module")
def near_miss(made, tmp_path_factory):
    """A core set that hardly changes the accuracy: some p-values lie between .05 and .5."""
    folder = tmp_path_factory.mktemp("near")
    paths = [write_run(folder / f"p{s}", "FedAvg", s) for s in range(3)]
    paths += [write_run(folder / f"c{s}", "Core", s, memory=20, gain=0.006) for s in range(3)]
    return made("near", paths)


@pytest.fixture(scope="module")
def worse(made, tmp_path_factory):
    """A core set that does harm to the accuracy."""
    folder = tmp_path_factory.mktemp("worse")
    paths = [write_run(folder / f"p{s}", "FedAvg", s, rounds=40) for s in range(3)]
    paths += [
        write_run(folder / f"c{s}", "Core", s, rounds=40, memory=20, gain=-0.3) for s in range(3)
    ]
    return made("worse", paths)


def recomputed(found):
    """Mean, half of the interval and p-value of every difference, seed by seed."""
    by_name = {group.name: group.runs for group in found}
    numbers = {
        name: [json.loads((run.path / "summary.json").read_text()) for run in runs]
        for name, runs in by_name.items()
    }
    table = {}
    for key in NAMES:
        gaps = 100 * np.array(
            [a[key] - b[key] for a, b in zip(numbers["Core"], numbers["FedAvg"], strict=True)]
        )
        error = gaps.std(ddof=1) / math.sqrt(3)
        t = abs(gaps.mean()) / error
        table[key] = (gaps.mean(), T * error, 1 - t / math.sqrt(2 + t * t), gaps)
    return table  # fmt: skip


def clause(key, mean):
    size, gain = f"{abs(mean):.1f} points", (mean < 0) == (key == "last_forgetting")
    if key == "last_forgetting":
        return f"forgets {size} {'less' if gain else 'more'}"
    end = {"anytime": "over time", "last": "after the last round"}[key]
    return f"is {size} {'better' if gain else 'worse'} {end}"


@pytest.mark.parametrize("scene", ["two", "near_miss"])
def test_the_headline_is_what_the_summaries_say(tab, request, scene):
    address, found = request.getfixturevalue(scene)
    page, table = tab().open(address), recomputed(found)
    order = [key for key in ("last_forgetting", "anytime", "last") if table[key][2] < 0.05]
    assert (len(order) == 3) == (scene == "two")  # of the other something is not resolved
    first, *others = [clause(key, table[key][0]) for key in order[:2]]
    first = re.sub(r"(less|more|better|worse)", r"\1 than FedAvg", first, count=1)
    assert page.locator("h1").inner_text() == f"Core {' and '.join([first, *others])}"
    clear = page.locator("p.verdict.clear").inner_text()
    below = page.locator("p.verdict.unresolved")
    open_ = below.inner_text() if below.count() else ""
    for key, (mean, _, p, _) in table.items():
        words = f"{NAMES[key]} {'+' if mean > 0 else '−'}{abs(mean):.1f} points"
        assert (words in clear) == (p < 0.05)
        assert (words in open_) == (p >= 0.05)


@pytest.mark.parametrize("scene", ["two", "near_miss", "worse"])
def test_differences_are_drawn_where_they_are(tab, request, scene):
    address, found = request.getfixturevalue(scene)
    page, table = tab(width=1440).open(address), recomputed(found)
    drawing = page.locator(".differences svg.drawing")
    texts = drawing.locator("text").evaluate_all(
        "(all) => all.map((e) => [e.textContent, Number(e.getAttribute('x'))])"
    )
    marks = {number(t): x for t, x in texts if re.fullmatch(r"[−+]?[\d.]+", t)}
    assert len(marks) >= 3
    x, edges = line(marks), drawing.locator(".grid, .zero")
    assert float(drawing.locator(".zero").get_attribute("x1")) == pytest.approx(x(0), abs=0.5)
    left = min(float(e.get_attribute("x1")) for e in edges.all())
    for key, (mean, half, p, gaps) in table.items():
        mark = page.locator(f'.mean[data-key="{key}"]')
        assert float(mark.get_attribute("cx")) == pytest.approx(x(mean), abs=1)
        assert mark.get_attribute("data-resolved") == str(bool(p < 0.05)).lower()
        gain = (mean < 0) == (key == "last_forgetting")
        kind = "open" if p >= 0.05 else "gain" if gain else "loss"
        assert mark.get_attribute("class") == f"mean {kind}"
        height = mark.get_attribute("cy")
        ends = drawing.locator(f'.interval[y1="{height}"]')
        places = sorted(float(ends.get_attribute(name)) for name in ("x1", "x2"))
        if places[0] > left - 20:
            assert places == pytest.approx([x(mean - half), x(mean + half)], abs=1.5)
        below = drawing.locator(f'.tick[y1="{float(height) + 9:g}"]')
        drawn = sorted(float(e.get_attribute("x1")) for e in below.all())
        assert drawn == pytest.approx(sorted(x(gap) for gap in gaps), abs=1)


def test_tiles_are_of_the_headline_and_its_reference(tab, two):
    page, found = tab().open(two[0]), {group.name: group for group in two[1]}
    tile = page.locator(".tile", has_text="anytime").inner_text()
    numbers = {}
    for name, group in found.items():
        values = [
            100 * json.loads((r.path / "summary.json").read_text())["anytime"] for r in group.runs
        ]
        numbers[name] = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert tile.split("\n")[1].startswith(numbers["Core"])
    assert tile.split("\n")[2] == f"instead of {numbers['FedAvg']}"  # fmt: skip


def test_clients_are_drawn_where_they_are(tab, two):
    """The accuracy of every client after the last round: mean over its data sets."""
    page, found = tab(width=1440).open(two[0]), two[1]
    drawing = page.locator(".clients svg.drawing")
    texts = drawing.locator("text").evaluate_all(
        "(all) => all.map((e) => [e.textContent, Number(e.getAttribute('x'))])"
    )
    x = line({number(t[:-2]): p for t, p in texts if re.fullmatch(r"[\d.]+ %", t)})
    for place, group in enumerate(found):
        means = []
        for run in group.runs:
            last = run.record("period_accuracy")[-1]["accuracy"]
            means += [100 * np.mean([a for c, _, a in last if c == client]) for client in range(5)]
        dots = drawing.locator(f'circle[fill="var(--c{place})"]')
        drawn = [float(dot.get_attribute("cx")) for dot in dots.all()]
        assert sorted(drawn) == pytest.approx(sorted(map(x, means)), abs=1)
        assert (
            f"worst: client 3, seed {np.argmin(means) // 5}, {min(means):.1f} %"
            in drawing.text_content()
        )
