"""The command chronofed flower local, as a user runs it."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers.trial import NEEDS_FLOWER, differences, rounds_done, small, undisturbed, wait

pytestmark = NEEDS_FLOWER


def started(run: Path, spec: Path) -> subprocess.Popen:
    command = ["-m", "chronofed", "flower", "local", str(spec), "--clients", "3", "-o", str(run)]
    return subprocess.Popen(
        [sys.executable, *command, "--round-timeout", "240", "--join-timeout", "120"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(run: Path) -> list[str]:
    """Processes that have to do with a run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            about = (path / "cmdline").read_text() + (path / "environ").read_text()
        except OSError:
            continue
        if str(run) in about:
            found.append((path / "cmdline").read_text().replace("\0", " "))
    return found


def test_interrupted_it_leaves_no_process_behind_and_resumes(tmp_path):
    run, spec = tmp_path / "run", tmp_path / "spec.toml"
    spec.write_text(small().resolved())
    first = started(run, spec)
    wait(lambda: rounds_done(run) >= 1, what="the first round")
    assert left(run)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 130
    assert f"run the same command with -o {run}" in said
    wait(lambda: not left(run), 60.0, "the end of all processes")

    second = started(run, spec)
    shown, said = second.communicate(timeout=500)
    assert second.returncode == 0, said
    assert "small" in shown
    assert differences(run, undisturbed(small())) == []
    wait(lambda: not left(run), 60.0, "the end of all processes")


def test_killed_it_leaves_no_process_behind(tmp_path):
    run, spec = tmp_path / "run", tmp_path / "spec.toml"
    spec.write_text(small(rounds=50).resolved())
    process = started(run, spec)
    wait(lambda: rounds_done(run) >= 1, what="the first round")
    process.kill()
    process.communicate(timeout=60)
    wait(lambda: not left(run), 120.0, "the end of all processes")
