"""Every map and stacked chart is that of its own run: colours and words against the records."""

import itertools
import json
import re

import numpy as np
import pytest

from chronofed.reports.styles import COLOURS
from tests.browser.marks import colour, image, near, number, probe, rgb
from tests.helpers.scenes import monthly

PLACES = [(0.4, 0.1), (0.6, 0.45), (0.8, 0.3), (0.9, 0.62), (0.97, 0.8), (0.3, 0.7)]


def lines_of(run, name):
    return [json.loads(line) for line in (run.path / f"{name}.jsonl").read_text().splitlines()]


def ramp(page, name, share):
    return colour(page, f"cf.ramp(cf.stops('{name}'), {share})")


@pytest.mark.parametrize("mode", ["Accuracy", "Lost since best"])
def test_each_map_of_forgetting_is_that_of_its_own_run(tab, two, mode):
    """Cells under the pointer, against the file of the run that the heading names."""
    page = tab(width=1440).open(two[0])
    page.get_by_role("button", name=mode, exact=True).click()
    page.wait_for_timeout(100)
    runs = {run.label: run for group in two[1] for run in group.runs}
    maps = page.locator("#forgetting .beside > figure")
    labels = [maps.nth(k).locator("figcaption").inner_text().strip() for k in range(2)]
    assert labels[0].partition(",")[0] != labels[1].partition(",")[0]  # of two methods
    for k, label in enumerate(labels):
        lines, checked = lines_of(runs[label], "period_accuracy"), 0
        now = {(c, key): a for c, key, a in lines[-1]["accuracy"]}
        every = [{(c, key): a for c, key, a in one["accuracy"]} for one in lines]
        for place in PLACES:
            words, pixel = probe(page, maps.nth(k).locator("canvas"), *place)
            if not words:
                continue
            client, key = (int(part.split()[-1]) for part in words[0].split(", "))
            best = max(one[client, key] for one in every if (client, key) in one)
            value = now[client, key]
            stated = next(line for line in words if line.startswith("now "))
            numbers = [number(text) for text in re.findall(r"[\d.]+", stated)]
            assert numbers == pytest.approx([100 * value, 100 * best], abs=0.051)
            shown = value if mode == "Accuracy" else best - value
            scale = "more" if mode == "Accuracy" else "less"
            assert near(pixel, ramp(page, scale, shown), 9).any()
            checked += 1
        assert checked >= 4


def test_each_map_of_classes_is_that_of_its_own_experiment(tab, two):
    """The recall of a class, recomputed: the accuracy on data sets that hold it alone, mean over seeds."""
    page = tab(width=1440).open(two[0])
    names = ["shoe", "shirt", "bag", "coat", "boot"]
    for group in two[1]:
        canvas = page.locator(f'figure.class-map[data-group="{group.name}"] canvas')
        records = [lines_of(run, "period_accuracy") for run in group.runs]
        for place in PLACES:
            words, pixel = probe(page, canvas, *place)
            if not words:
                continue
            kind, _, round_ = words[0].partition(", round ")
            last = [
                [a for c, _, a in line["accuracy"] if c == names.index(kind)][-1]
                for lines in records
                for line in lines
                if line["round"] == int(round_)
            ]
            assert words[1] == group.name
            assert number(words[2].split()[1]) == pytest.approx(100 * np.mean(last), abs=0.06)
            assert near(pixel, ramp(page, "known", np.mean(last)), 9).any()


def scenario(two):
    return two[1][0].runs[0].directory.scenario()


def test_the_chart_of_who_took_part_is_the_record(tab, two):
    page, about = tab().open(two[0]), scenario(two)
    figure = page.locator("#scenario figure").nth(0)
    seen = set()
    for across in (0.3, 0.55, 0.9):
        for down in (0.12, 0.3, 0.45, 0.6, 0.78):
            words, pixel = probe(page, figure.locator("canvas"), across, down)
            client, round_ = (int(part.split()[-1]) for part in words[0].split(", "))
            there = about["there"][client][about["shown"].index(round_ - 1)] == "1"
            assert words[1] == ("took part" if there else "not there")
            wanted = "cf.stops('more')[2]" if there else "cf.colour('--empty')"
            assert near(pixel, colour(page, wanted), 9).any()
            seen.add((client, there))
    assert len(seen) > 5
    assert {there for _, there in seen} == {True, False}


def test_the_class_mix_is_the_record(tab, two):
    """The heights of the colours in a column, as shares of the samples."""
    page, about = tab(width=1440).open(two[0]), scenario(two)
    figure = page.locator("#scenario figure").nth(1)
    keys = page.locator("#scenario .keys > span")
    assert keys.all_inner_texts() == about["classes"]
    for c, across in enumerate((0.25, 0.55, 0.9)):
        words, _ = probe(page, figure.locator("canvas"), across, 0.3)
        samples = about["mix"][c]
        assert words[0] == f"round {about['shown'][c] + 1}"
        assert words[1] == f"{sum(d[c] == '1' for d in about['there'])} clients"
        assert f"{about['classes'][0]}: {samples[0]}" in words
        pixels = image(figure.locator("canvas"))
        column = pixels[:, int(across * pixels.shape[1])]
        tall = 170 / max(map(sum, about["mix"]))
        for k, count in enumerate(samples):
            swatch = keys.nth(k).locator(".swatch")
            kind = rgb(swatch.evaluate("(e) => getComputedStyle(e).backgroundColor"))
            assert near(column, kind, 12).sum() == pytest.approx(count * tall, abs=2.1), (c, k)


def test_the_class_mix_of_a_client_is_its_own(tab, two):
    page, about = tab(width=1440).open(two[0]), scenario(two)
    canvas = page.locator("#scenario figure").nth(2).locator("canvas")
    for client, down in enumerate((0.12, 0.3, 0.48, 0.62, 0.76)):
        words, pixel = probe(page, canvas, 0.9, down)
        assert words[0] == f"client {client}, round 101"
        most = about["held"][client][2][1][0]
        assert words[1] == f"{about['classes'][most[0]]}: {most[1]}"
        shown = [colour(page, f"cf.kind({k}, 5)") for k, _ in about["held"][client][2][1]]
        assert any(near(pixel, each, 9).any() for each in shown)


def test_round_weights_are_stacked_as_recorded(tab, two):
    page = tab(width=1440).open(two[0])
    run = two[1][1].runs[0]
    assert page.locator("#weights .bar").inner_text() == run.label
    canvas, lines = page.locator("#weights canvas"), lines_of(run, "round_weights")
    for across in (0.3, 0.5, 0.95):
        words, _ = probe(page, canvas, across, 0.3)
        line = next(one for one in lines if f"round {one['round']}" == words[0])
        assert number(words[1].partition(": ")[2]) == pytest.approx(line["present"], rel=1e-3)
        assert number(words[2].partition(": ")[2]) == pytest.approx(line["past"][0], rel=1e-3)
        pixels = image(canvas)
        column = pixels[:, int(across * pixels.shape[1])]
        present = near(column, colour(page, "cf.colour('--present')"), 20).sum()
        assert present == pytest.approx(210 * line["present"], abs=4)
        grey = near(column, colour(page, "cf.colour('--empty')"), 4)[:218].sum()
        rest = 1 - line["present"] - sum(line["past"]) - line["older"]
        assert grey == pytest.approx(210 * rest, abs=6)


def test_models_that_clients_follow_are_those_recorded(tab, two):
    page = tab(width=1440).open(two[0])
    run = two[1][1].runs[0]
    canvas, lines = page.locator("#clusters canvas"), lines_of(run, "clusters")
    seen = set()
    for place in PLACES:
        words, pixel = probe(page, canvas, *place)
        client, round_ = (int(part.split()[-1]) for part in words[0].split(", "))
        model = next(one for one in lines if one["round"] == round_)["of"][client]
        assert words[1] == ("none" if model < 0 else f"model {model}")
        if model >= 0:
            assert near(pixel, rgb(COLOURS[model]), 9).any()
        seen.add(model)
    assert len(seen) >= 3


def test_time_by_phase_is_the_mean_over_seeds(tab, two):
    page = tab().open(two[0])
    scale = set()
    for group in two[1]:
        spent = [
            {p: sum(line[p] for line in lines_of(run, "times")) for p in ("train", "evaluate")}
            for run in group.runs
        ]
        for phase in ("train", "evaluate"):
            bar = page.locator(f'#times rect[data-phase={phase}][data-group="{group.name}"]')
            mean = np.mean([one[phase] for one in spent])
            scale.add(round(float(bar.get_attribute("width")) / mean, 1))
            title = bar.locator("title").evaluate("(e) => e.textContent")
            assert title == f"{group.name}, {phase}: {mean:.4g} s"
    assert max(scale) - min(scale) < 0.3  # one scale for all bars


def test_names_below_a_map_do_not_touch(tab, made, tmp_path):
    """Months, of which the last is moved inside; and every class has its name, also where cells are low."""
    months = [f"{2008 + k // 12}-{1 + k % 12:02d}" for k in range(113)]
    view = monthly(tmp_path / "run", "A", 0, months)
    address, _ = made("months", [view.path])
    for width in (390, 900, 1440):
        page = tab(width=width).open(address)
        code = """() => { const map = new cf.Heatmap({ label: "t", describe: () => [""] });
        document.querySelector("main").append(cf.el("div", {}, map.node));
        map.update({ rows: ["one", "two"], columns: NAMES, value: () => 0.5 });
        const context = map.canvas.getContext("2d"); context.font = "12px system-ui, sans-serif";
        return map.canvas.texts.map(([text, x, y]) => [text, x, y, context.measureText(text).width]); }"""
        texts = page.evaluate(code.replace("NAMES", json.dumps(months)))
        below = sorted((x - wide / 2, x + wide / 2) for text, x, _, wide in texts if "-" in text)
        assert len(below) > 2
        assert all(b[0] - a[1] > 4 for a, b in itertools.pairwise(below))
        assert {"one", "two"} <= {text for text, *_ in texts}
