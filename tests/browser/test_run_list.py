"""The list of the live page: sorted, found, coloured, dated, and light with a thousand runs."""

import os
import time

import pytest

from chronofed.runs import RunDirectory
from tests.browser.marks import rgb
from tests.helpers.scenes import write_run

NAMES = "(all) => all.map((e) => e.textContent.trim().replace(/, seed.*/, ''))"
HOUR = 3600


@pytest.fixture
def mixed(tmp_path):
    """Runs in three states, each last written an hour before the next."""
    write_run(tmp_path / "a", "run 10", rounds=40, periods=False)
    write_run(tmp_path / "b", "run 9", rounds=80, memory=5, periods=False)
    write_run(tmp_path / "c", "run 2", rounds=20, periods=False, finish=False)
    RunDirectory(tmp_path / "c").fail("it broke")
    for hours, name in enumerate("abc"):
        at = 1_700_000_000 + hours * HOUR
        os.utime(tmp_path / name / "metrics.jsonl", (at, at))
    return tmp_path


def order(page, sort):
    page.get_by_label("Sort").select_option(sort)
    return page.locator(".runs .title").evaluate_all(NAMES)


def test_runs_are_sorted(tab, serve, mixed):
    page = tab().open(serve(mixed))
    scores = {}
    for name in "abc":
        run = RunDirectory(mixed / name)
        scores[run.spec_path.read_text().split('"')[1]] = run.history()[-1]["test_accuracy"]
    ranked = sorted(scores, key=lambda name: -scores[name])
    assert order(page, "latest") == ["run 2", "run 9", "run 10"]
    assert order(page, "name") == ["run 2", "run 9", "run 10"]
    assert order(page, "best") == ranked
    assert order(page, "worst") == ranked[::-1]
    assert order(page, "round") == ["run 9", "run 10", "run 2"]
    assert order(page, "state") == ["run 9", "run 10", "run 2"]
    page.get_by_role("button", name="failed", exact=True).click()
    assert page.locator(".runs .title").evaluate_all(NAMES) == ["run 2"]  # fmt: skip


def test_a_row_has_the_date_and_the_colour_of_its_curve(tab, serve, mixed):
    page = tab().open(serve(mixed))
    for place, name in ((0, "run 2"), (1, "run 9"), (2, "run 10")):
        row = page.locator(".runs li").nth(place)
        at = time.localtime(1_700_000_000 + (2 - place) * HOUR)
        assert row.locator("time").inner_text() == time.strftime("%Y-%m-%d %H:%M", at)
        stroke = row.locator(".line line").evaluate("(e) => getComputedStyle(e).stroke")
        key = page.locator("#curves .key", has_text=name).locator("line")
        assert rgb(stroke) == rgb(key.evaluate("(e) => getComputedStyle(e).stroke"))


def test_all_that_are_found_can_be_chosen(tab, serve, mixed):
    page = tab().open(serve(mixed))
    page.get_by_role("button", name="Choose none").click()
    assert page.get_by_text("Choose runs in the list").is_visible()
    page.get_by_label("Find a run").fill("run 1")
    page.get_by_role("button", name="Choose these").click()
    page.wait_for_function("() => document.querySelectorAll('table.summary tbody tr').length === 1")
    assert "1 found, 1 chosen" in page.locator("aside .find").inner_text()


def test_a_thousand_runs_are_light(tab, serve, tmp_path):
    """What the page holds and what is sent, which do not depend on the machine."""
    for k in range(1000):
        write_run(tmp_path / f"run-{k}", f"lr={k % 250}", k // 250, rounds=8, periods=False)
    watched = tab()
    sent = []
    watched.page.on("response", lambda r: sent.append(r) if "/api/runs" in r.url else None)
    timer = time.monotonic()
    page = watched.open(serve(tmp_path) + "#run=run-0&run=run-1")
    print(f"1,000 runs after {time.monotonic() - timer:.1f} s")
    assert page.locator("#counts").inner_text() == "1000 runs: 1000 finished"
    assert page.locator(".runs li").count() == 100
    nodes = page.evaluate("() => document.querySelectorAll('*').length")
    print(f"{nodes} elements, list of {len(sent[0].body())} bytes")
    assert nodes < 4000
    assert len(sent[0].body()) < 500_000
    with page.expect_response(lambda r: "/api/runs" in r.url and r.status == 200) as later:
        (tmp_path / "run-5" / "summary.json").unlink()  # one run changes
    answer = later.value.json()
    assert [row["id"] for row in answer["runs"]] in ([], ["run-5"])
    assert len(later.value.body()) < 1000
    typed = page.get_by_label("Find a run")
    typed.fill("lr=249")
    assert page.locator(".runs li").count() == 4
    typed.fill("")
    assert page.locator(".runs li").count() == 100
