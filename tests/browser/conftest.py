"""A real browser, and runs to look at.

Run by ``make test-browser``. No browser is downloaded: it is Debian's Chromium, or the one that the variable
CHRONOFED_BROWSER names. Without it, or without Playwright, these tests are skipped with the reason.
"""

import os
import shutil
import threading
from pathlib import Path

import pytest

from chronofed.reports.groups import groups
from chronofed.reports.runs import RunView
from chronofed.reports.web.live import LiveServer
from chronofed.reports.web.page import write_report
from tests.browser.marks import RECORD
from tests.helpers.scenes import EVIL, write_run

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="needs the extra 'browser'")
    program = os.environ.get("CHRONOFED_BROWSER") or shutil.which("chromium")
    if program is None:
        pytest.skip("no browser: apt install chromium, or set CHRONOFED_BROWSER")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page, and all that it asked for or complained about."""

    def __init__(self, page):
        self.page, self.requests, self.complaints = page, [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self._note(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _note(self, text):
        if "willReadFrequently" not in text:  # which is about how these tests look at pixels
            self.complaints.append(text)

    def open(self, url):
        self.page.goto(url)
        self.page.wait_for_selector("body[data-ready]")
        self.page.wait_for_timeout(200)  # canvases are painted in the next frames
        return self.page


@pytest.fixture(scope="session", autouse=True)
def _quick_files():
    """Hundreds of runs are written here, and none of them must survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Write reports: made(name, runs) returns the address and the experiments."""
    folder = tmp_path_factory.mktemp("reports")

    def made(name, paths):
        found = groups([RunView.read(path) for path in paths])
        write_report(found, folder / f"{name}.html", name)
        return (folder / f"{name}.html").as_uri(), found

    return made


@pytest.fixture(scope="session")
def two(made, tmp_path_factory):
    """Two methods, three seeds each."""
    folder = tmp_path_factory.mktemp("two")
    paths = [write_run(folder / f"p{s}", "FedAvg", s) for s in range(3)]
    paths += [write_run(folder / f"c{s}", "Core", s, memory=20, models=3) for s in range(3)]
    return made("two", paths)


@pytest.fixture
def tab(chromium):
    """Makes pages; all of them must stay without complaints."""
    made = []

    def tab(width=1280, height=900, scheme="light"):
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        context.add_init_script(RECORD)
        made.append((context, Watched(context.new_page())))
        return made[-1][1]

    yield tab
    for context, watched in made:
        assert watched.complaints == []
        context.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Two methods with two seeds each, and a run with a nasty name."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(folder / f"plain-{seed}", "FedAvg", seed)
        write_run(folder / f"core-{seed}", "CFL-Core-Set", seed, memory=20, models=3)
    write_run(folder / "evil", EVIL, rounds=100)
    return folder


@pytest.fixture(scope="session")
def report(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    order = ("plain-0", "plain-1", "core-0", "core-1", "evil")
    write_report(groups([RunView.read(runs / name) for name in order]), path, "A report")
    return path.as_uri()


@pytest.fixture
def serve():
    """Starts live pages, and stops them in the end."""
    started = []

    def serve(folder):
        server = LiveServer(folder, 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        started.append((server, thread))
        return server.url

    yield serve
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()
