"""The live page while runs are written, after crashes, and with many of them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from chronofed.runs import RunDirectory
from tests.helpers.scenes import EVIL, write_run

SPEC = """
name = "live"
rounds = 4000
[model]
kind = "linear"
[train]
steps = 1
[evaluate]
every = 1
seen = 0
"""


def test_the_list_and_a_comparison(tab, serve, runs):
    page = tab().open(serve(runs))
    assert page.locator("#counts").inner_text() == "5 runs: 5 finished"
    assert page.locator(".runs li").count() == 5
    assert EVIL in page.locator(".runs").inner_text()
    while page.locator(".runs input:checked").count():
        page.locator(".runs input:checked").first.click()
    assert page.get_by_text("Choose runs in the list").is_visible()
    page.get_by_role("checkbox", name="FedAvg, seed 0").check()
    page.get_by_role("checkbox", name="CFL-Core-Set, seed 1").check()
    page.wait_for_function("() => document.querySelectorAll('table.summary tbody tr').length === 2")
    assert "run=plain-0&run=core-1" in page.url
    page.reload()
    page.wait_for_selector("table.summary")
    assert page.locator(".runs input:checked").count() == 2
    page.get_by_label("Find a run").fill("core")
    assert page.locator(".runs li:visible").count() == 2
    page.get_by_label("Find a run").fill("")
    page.get_by_label("Find a run").press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the chip "finished"
    assert page.locator(".chips [aria-pressed=true]").inner_text() == "finished"


def test_a_new_record_appears_within_two_seconds_while_a_real_run_trains(tab, serve, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    folder = tmp_path / "runs"
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "chronofed",
        "run",
        str(tmp_path / "spec.toml"),
        "-q",
        "-o",
        str(folder / "one"),
    ]
    page = tab().open(serve(folder))
    assert "No run yet" in page.locator("#counts").inner_text()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            page.wait_for_selector(".badge.running", timeout=60_000)
            page.wait_for_selector("figure[data-measure=test_accuracy] canvas", timeout=30_000)
            shown = "() => parseInt(document.querySelector('.runs .where').textContent.slice(6))"
            delays = []
            for _ in range(3):
                written = len(RunDirectory(folder / "one").history())
                timer = time.monotonic()
                page.wait_for_function(f"(n) => ({shown})() >= n", arg=written, timeout=20_000)
                delays.append(time.monotonic() - timer)
            print("seconds until a record was shown:", [round(d, 2) for d in delays])
            assert sorted(delays)[1] < 2
            ends = "() => document.querySelector('#curves .chart').getAttribute('aria-label')"
            before = page.evaluate(ends)
            page.wait_for_function(f"(before) => ({ends})() !== before", arg=before, timeout=20_000)
            assert "left" in page.locator(".runs .where").inner_text()
            assert page.title().startswith("1 running")
        finally:
            process.send_signal(signal.SIGKILL)
    page.wait_for_selector(".badge.stopped", timeout=20_000)  # after the crash
    assert page.locator("table.summary tbody tr").count() == 1


def test_a_run_that_fails_or_is_half_written(tab, serve, tmp_path):
    path = write_run(tmp_path / "one", "half", finish=False)
    page = tab().open(serve(tmp_path))
    assert page.locator(".runs .badge").inner_text() == "stopped"
    RunDirectory(path).fail("round 9: the model is no longer finite")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 164, "test_acc')
    page.wait_for_selector(".badge.failed")
    assert page.locator(".runs .note").inner_text() == "round 9: the model is no longer finite"
    assert "round 160" in page.locator(".runs .where").inner_text()


def test_what_the_reader_chose_survives_an_update(tab, serve, tmp_path):
    path = write_run(tmp_path / "one", "grows", finish=False)
    page = tab().open(serve(tmp_path))
    page.get_by_label("first round shown").fill("40")
    page.get_by_label("last round shown").fill("80")
    page.get_by_label("last round shown").press("Enter")
    page.locator("#round").evaluate("(e) => { e.value = 10; e.dispatchEvent(new Event('input')); }")
    page.locator("#curves details summary").first.click()
    rows = page.locator("#curves details tbody tr").count()
    RunDirectory(path).append(
        {"round": 164, "test_accuracy": 0.5, "test_loss": 1.0}, {"total": 1.0}
    )
    page.wait_for_function(
        "(n) => document.querySelectorAll('#curves details[open] tbody tr').length > n", arg=rows
    )
    numbers = page.locator("#curves .bar input[type=number]").evaluate_all(
        "(all) => all.map((e) => e.value)"
    )
    assert numbers == ["40", "80"]
    assert page.locator("#forgetting output").inner_text() == "44"


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """500 runs, one of them with 10,000 rounds."""
    folder = tmp_path_factory.mktemp("many")
    write_run(folder / "long", "long", rounds=40_000, periods=False)
    for k in range(499):
        write_run(
            folder / f"grid-{k % 7}" / f"run-{k}", f"method {k % 25}", k, rounds=40, periods=False
        )
    for k in range(0, 499, 5):
        os.unlink(folder / f"grid-{k % 7}" / f"run-{k}" / "summary.json")
    return folder


def test_500_runs_are_listed_in_two_seconds(tab, serve, many):
    watched = tab()
    url = serve(many)
    timer = time.monotonic()
    watched.page.goto(url)
    watched.page.wait_for_function(
        "() => document.querySelectorAll('.runs li').length === 100", timeout=60_000
    )
    print(f"500 runs listed after {time.monotonic() - timer:.2f} s")
    counts = watched.page.locator("#counts").inner_text()
    assert counts == "500 runs: 400 finished, 100 stopped"
    assert "scroll for 400 more" in watched.page.locator("aside .find").inner_text()
    for _ in range(4):
        before = watched.page.locator(".runs li").count()
        watched.page.locator(".runs").evaluate("(e) => { e.scrollTop = e.scrollHeight; }")
        watched.page.wait_for_function(
            "(n) => document.querySelectorAll('.runs li').length > n", arg=before
        )
    assert watched.page.locator(".runs li").count() == 500


def test_ten_thousand_evaluations_do_not_lag(tab, serve, many):
    watched = tab()
    page = watched.open(serve(many) + "#run=long")
    page.wait_for_selector("figure[data-measure=test_accuracy] canvas")
    fetched = "fetch('/api/payload?run=long').then((r) => r.json())"
    points = page.evaluate(f"() => {fetched}.then((d) => d.measures[0].curves[0].x.length)")
    assert 300 <= points <= 600
    drag = """() => { const clock = performance.now();
      const slider = document.querySelector('#curves-smoothing');
      for (let k = 0; k < 10; k++) { slider.value = k; slider.dispatchEvent(new Event('input')); }
      return performance.now() - clock; }"""
    spent = page.evaluate(drag)
    print(f"ten steps of smoothing: {spent:.0f} ms")
    assert spent < 2000


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_is_cut(tab, serve, runs, width, scheme):
    page = tab(width=width, height=844, scheme=scheme).open(serve(runs))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert page.locator(".runs li").first.is_visible()


def test_with_the_keyboard_alone(tab, serve, runs):
    page = tab().open(serve(runs) + "#run=evil")
    box = page.get_by_role("checkbox", name="FedAvg, seed 0")
    box.focus()
    page.keyboard.press("Space")
    page.wait_for_function("() => document.querySelectorAll('table.summary tbody tr').length === 2")
    page.wait_for_timeout(1500)  # polling must not take the focus away
    assert box.evaluate("(e) => e === document.activeElement")
    assert json.loads(page.evaluate("() => JSON.stringify(document.title)")) == "Runs · chronofed"


def test_a_server_that_went_away_is_said(chromium, serve, runs):
    context = chromium.new_context()
    page = context.new_page()
    page.goto(serve(runs))
    page.wait_for_selector("body[data-ready]")
    page.route("**/api/*", lambda route: route.abort())
    page.wait_for_selector(".offline:visible", timeout=10_000)
    page.unroute("**/api/*")
    page.wait_for_selector(".offline", state="hidden", timeout=10_000)
    context.close()
