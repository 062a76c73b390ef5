"""What is drawn is what was recorded: these tests die when the page lies."""

import itertools
import json
import re

import numpy as np
import pytest

from chronofed.runs import RunDirectory
from tests.browser.test_report import CHART
from tests.helpers.scenes import write_run

LOOK = "(all) => all.map((e) => getComputedStyle(e).stroke + e.getAttribute('stroke-dasharray'))"
STYLES = """() => Object.fromEntries([...document.querySelectorAll('#curves .key')].map(
  (e) => [e.textContent, e.querySelector('.line').dataset.style]))"""


def round_under(page, share):
    """The round that the chart names at a share of its width."""
    over = page.locator(f"{CHART} .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + 40)
    return int(re.match(r"round (\d+)", page.locator(".tooltip").inner_text())[1])


def test_the_scale_follows_the_zoom(tab, two):
    page = tab().open(two[0])
    assert round_under(page, 0.01) <= 8
    assert round_under(page, 0.99) >= 156
    over = page.locator(f"{CHART} .u-over")
    box = over.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()
    low, high = 4 + 0.5 * 156, 4 + 0.75 * 156
    assert abs(round_under(page, 0.01) - low) <= 6
    assert abs(round_under(page, 0.99) - high) <= 6
    page.get_by_role("button", name="Show all").click()
    assert round_under(page, 0.01) <= 8


def test_curves_are_where_the_numbers_are(tab, two):
    """The tooltip at every end, against the means of the records."""
    page, found = tab().open(two[0]), two[1]
    page.locator(f"{CHART} .chart").focus()
    for key, at in (("Home", 0), ("End", -1)):
        page.keyboard.press(key)
        words = page.locator("#spoken").inner_text()
        for group in found:
            round_, mean, deviation = group.curve("test_accuracy")[at]
            assert words.startswith(f"round {round_}: ")
            shown = re.search(rf"{group.name} ([\d.]+)% ± ([\d.]+)", words)
            assert float(shown[1]) == float(f"{100 * mean:.4g}")
            assert float(shown[2]) == pytest.approx(100 * deviation, rel=2e-3)


def test_a_failed_run_shows_the_reason_and_no_false_words(tab, made, tmp_path):
    path = write_run(tmp_path / "run", "Core", memory=5, rounds=1, finish=False)
    for name in ("round_weights", "period_accuracy", "clusters"):
        (path / f"{name}.jsonl").unlink()
    RunDirectory(path).fail("round 1: the model is no longer finite")
    page = tab().open(made("failed", [path])[0])
    assert page.locator("h1").inner_text() == "Core failed after round 0 of 1"
    words = page.locator("body").inner_text()
    assert words.count("round 1: the model is no longer finite") >= 2
    assert "Nothing is remembered" not in words
    assert "no evaluation" in page.locator("#weights").inner_text()
    drawn = page.locator("figure:visible canvas")
    assert drawn.count() == page.locator("#scenario figure:visible canvas").count() == 3


def test_nothing_forgotten_is_said_plainly(tab, made, tmp_path):
    path = write_run(tmp_path / "run", "FedAvg", rounds=8)
    lines = (path / "period_accuracy.jsonl").read_text().splitlines()
    table = [json.loads(line) for line in lines]
    for line in table:
        line["accuracy"] = [[c, k, 0.75] for c, k, _ in line["accuracy"]]
    (path / "period_accuracy.jsonl").write_text("".join(json.dumps(x) + "\n" for x in table))
    (path / "digests.json").unlink()
    page = tab().open(made("steady", [path])[0])
    answer = page.locator(".answer").inner_text()
    assert "has forgotten nothing that was measured" in answer
    assert "The worst is" not in answer


def test_one_run_and_a_running_one(tab, made, tmp_path):
    done = write_run(tmp_path / "a", "FedAvg", 0, rounds=40)
    page = tab().open(made("single", [done])[0])
    assert re.fullmatch(
        r"FedAvg reaches [\d.]+ % test accuracy after round 40", page.locator("h1").inner_text()
    )
    assert not page.locator(".differences").is_visible()
    begun = write_run(tmp_path / "b", "FedAvg", 1, rounds=40, finish=False, periods=False)
    page = tab().open(made("begun", [begun])[0])
    assert page.locator("h1").inner_text() == "FedAvg was stopped after round 40 of 40"


def test_twenty_methods_have_twenty_styles(tab, made, tmp_path):
    paths = [
        write_run(tmp_path / str(k), f"m{k}", rounds=20, memory=k + 1, periods=False)
        for k in range(20)
    ]
    page = tab(width=1440).open(made("twenty", paths)[0])
    looks = set(page.locator("#curves .key .line line").evaluate_all(LOOK))
    assert len(looks) == 20
    page.get_by_role("button", name="No curves").click()
    page.wait_for_timeout(100)
    assert page.locator("#curves .key[aria-pressed=true]").count() == 0
    page.get_by_role("button", name="All curves").click()
    assert page.locator("#curves .key[aria-pressed=true]").count() == 20
    over = page.locator(f"{CHART} .u-over")
    over.scroll_into_view_if_needed()
    over.hover(position={"x": 200, "y": 80})
    tip = page.locator(".tooltip")
    assert "and 8 more" in tip.inner_text()
    assert tip.bounding_box()["height"] < 400


def test_49_stations_with_names_and_a_calendar(tab, made, tmp_path):
    names, months = [f"Station {k:02}" for k in range(49)], [f"2009-{m:02}" for m in range(1, 13)]
    draw = np.random.default_rng(0)
    path = write_run(tmp_path / "a", "FedAvg", rounds=12, periods=False)
    lines = [
        {"round": t, "period": months[t - 1], "rows": 490,
         "classes": [[0.5, 0.8, 0.6, 400], [0.5, 0.2, 0.3, 90]],
         "clients": [[c, 10, 0.2 if c == 17 else float(draw.uniform(0.5, 1))] for c in range(49)]}
        for t in range(1, 13)
    ]  # fmt: skip
    (path / "breakdown.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    scenario = RunDirectory(path).scenario()
    RunDirectory(path).describe_scenario(
        scenario | {"rounds": 12, "clients": 49, "client_names": names, "period_names": months}
    )
    (path / "digests.json").unlink()
    page = tab(width=1440).open(made("stations", [path])[0])
    assert "worst: Station 17, 20.0 %" in page.locator(".clients").inner_text()
    assert page.locator(".clients circle").count() == 49
    over = page.locator(f"{CHART} .u-over")
    over.scroll_into_view_if_needed()
    over.hover(position={"x": 3, "y": 60})
    assert page.locator(".tooltip").inner_text().startswith("round 4, 2009-04")
    assert page.locator("#overview .tile", has_text="Station 17").count() == 1


def test_500_runs_are_light(tab, made, tmp_path):
    paths = [
        write_run(tmp_path / str(k), f"lr={k % 250}", k // 250, rounds=20 + k % 250, periods=False)
        for k in range(500)
    ]
    address, _ = made("many", paths)
    watched = tab(width=1440)
    page = watched.open(address)
    assert len(page.content()) < 3_000_000
    first = page.locator("figure[data-main=test_accuracy]").bounding_box()
    assert first["y"] < 900
    assert page.locator("#curves .legend").bounding_box()["height"] < 200
    boxes = [page.locator(f"#{name}").bounding_box() for name in ("summary", "curves")]
    assert boxes[1]["y"] - boxes[0]["y"] < 1400


def test_colours_stay_when_the_selection_changes(tab, serve, runs):
    page = tab().open(serve(runs) + "#run=core-0&run=plain-0")
    style = STYLES
    page.wait_for_function("() => document.querySelectorAll('#curves .key').length === 2")
    before = page.evaluate(style)
    for box in ("FedAvg, seed 0",):
        page.get_by_role("checkbox", name=box).uncheck()
    page.wait_for_function("() => document.querySelectorAll('#curves .key').length === 1")
    after = page.evaluate(style)
    assert after == {name: k for name, k in before.items() if name in after}
    assert [a for a, b in itertools.pairwise(before.values()) if a == b] == []
