"""What is drawn is what was recorded: these tests die when the page lies."""

import itertools
import json
import re

import numpy as np
import pytest

from chronofed.runs import RunDirectory
from tests.browser.marks import CHART, MAIN
from tests.helpers.scenes import monthly, write_run

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
    reason = page.locator("p.verdict.failed")
    assert reason.inner_text() == "Core, seed 0 failed: round 1: the model is no longer finite"
    colour = "(e) => getComputedStyle(e).color"
    own, in_table, soft = (
        page.locator(place).first.evaluate(colour)
        for place in ("p.verdict.failed", ".failure", ".provenance")
    )
    assert own == in_table != soft
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
    empty = page.locator(".card:visible").evaluate_all(
        "(all) => all.filter((e) => !e.innerText.trim()).length"
    )
    assert empty == 0
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


def test_many_months_are_calm(tab, made, tmp_path):
    """Averaged over a year, which is said; marked by years; and a name has the last value."""
    path, months = tmp_path / "a", [f"{2007 + k // 12}-{1 + k % 12:02}" for k in range(60)]
    view = monthly(path, "A", 0, months)
    page = tab(width=1440).open(made("months", [path])[0])
    main = page.locator(MAIN)
    assert "mean of the last 12 periods" in main.locator("figcaption").inner_text()
    texts = [text for text, *_ in main.locator("canvas").evaluate("(c) => c.texts")]
    assert [t for t in texts if re.fullmatch(r"20\d\d", t)] == ["2008", "2009", "2010", "2011"]
    last = 100 * view.series("test_accuracy")[1][-12:].mean()
    assert float(texts[texts.index("A") + 1]) == float(f"{last:.4g}")
    # below, every month is drawn
    page.locator(f"{CHART} .chart").focus()
    page.keyboard.press("End")
    assert page.locator("#spoken").inner_text().startswith("round 60: A")
    words = page.locator(".tooltip").inner_text()
    assert float(re.search(r"A: ([\d.]+)%", words)[1]) == float(
        f"{100 * view.series('test_accuracy')[1][-1]:.4g}"
    )
    page.get_by_label("first round shown").fill("50")
    page.get_by_label("first round shown").press("Enter")
    texts = [t for t, *_ in page.locator(f"{CHART} canvas").evaluate("(c) => c.texts")]
    assert {"2011-02", "2011-12"} & {*texts}  # single months, once few are shown


def test_a_curve_that_stops_early_has_no_name_at_the_end(tab, made, tmp_path):
    long = write_run(tmp_path / "a", "long", rounds=80, periods=False)
    short = write_run(tmp_path / "b", "short", memory=3, rounds=20, periods=False, finish=False)
    page = tab(width=1440).open(made("stops", [long, short])[0])
    texts = [text for text, *_ in page.locator(MAIN).locator("canvas").evaluate("(c) => c.texts")]
    assert "long" in texts
    assert not [text for text in texts if text.startswith("short")]


def test_500_runs_are_light(tab, made, tmp_path):
    paths = [
        write_run(tmp_path / str(k), f"lr={k % 250}", k // 250, rounds=20 + k % 250, periods=False)
        for k in range(500)
    ]
    address, _ = made("many", paths)
    watched = tab(width=1440)
    page = watched.open(address)
    assert len(page.content()) < 2_000_000
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


@pytest.mark.parametrize("width", [390, 1280, 1440])
def test_every_curve_of_the_first_chart_is_named(tab, serve, runs, width):
    """At the ends of the curves, or in the legend where there is no room; on the live page, too."""
    page = tab(width=width).open(serve(runs) + "#run=core-0&run=plain-0")
    page.wait_for_timeout(300)
    drawn = [text for text, *_ in page.locator(MAIN).locator("canvas").evaluate("(c) => c.texts")]
    legend = page.locator(f"{MAIN} .legend")
    told = legend.inner_text().split("\n") if legend.is_visible() else []
    assert {"FedAvg", "CFL-Core-Set"} <= {*drawn} ^ {*told}


def test_long_names_of_runs_are_whole_in_the_list(tab, serve, tmp_path):
    name = "lr=0.05, memory=core-set, scenario.clients=30, method.memory.size=100"
    write_run(tmp_path / "a", name, 12)
    page = tab(width=1440).open(serve(tmp_path))
    title = page.locator(".runs .title")
    assert title.inner_text().strip() == f"{name}, seed 12"
    assert title.evaluate("(e) => e.scrollWidth <= e.clientWidth + 1")


def test_the_list_of_a_phone_stays_in_its_card(tab, serve, tmp_path):
    for k in range(12):
        write_run(tmp_path / str(k), f"run {k}", k, rounds=20, periods=False)
    page = tab(width=390).open(serve(tmp_path))
    card, rows = page.locator("aside").bounding_box(), page.locator(".runs").bounding_box()
    assert rows["height"] > 100
    assert rows["y"] + rows["height"] <= card["y"] + card["height"]
