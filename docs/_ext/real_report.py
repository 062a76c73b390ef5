"""A real report to open: made anew from the records of the demo, so that it is always that of this version."""

import tarfile
import tempfile
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from chronofed.reports.groups import groups
from chronofed.reports.runs import read_runs
from chronofed.reports.web.page import write_report

RUNS = Path(__file__).parents[1] / "results" / "demo-runs.tar.xz"
TITLE = "FedAvg and CFL-Core-Set on clients whose data keep changing"


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write ``demo-report.html`` beside the pages."""
    if exception is None and app.builder.format == "html":
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(RUNS) as archive:
                archive.extractall(folder, filter="data")
            found = groups(read_runs([Path(folder)]))
            write_report(found, Path(app.outdir) / "demo-report.html", TITLE)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Write the report when all pages are written."""
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
