"""Standard streams that are full, closed, ASCII-only or unread never end in a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
COMMAND = [sys.executable, "-m", "chronofed"]


def run(*arguments, **options):
    environment = os.environ | options.pop("env", {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run([*COMMAND, *arguments], text=True, env=environment, timeout=120, **pipes)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["weights"],
        ["privacy", "--noise", "1", "--rounds", "5", "--json"],
    ],
)
@pytest.mark.slow
def test_a_full_standard_output_is_one_line(arguments):
    with FULL.open("w") as full:
        done = run(*arguments, stdout=full)
    assert done.returncode == 5
    assert done.stderr == (
        "chronofed: cannot write standard output: no space left on device; "
        "free some space or fix the permissions\n"
    )


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, which Linux has")
def test_a_full_standard_error_hides_nothing_but_notes():
    with FULL.open("w") as full:
        assert run("weights", stderr=full).returncode == 0
        assert run("weights", "--rounds", "0", stderr=full).returncode == 2


def test_an_ascii_terminal_gets_question_marks():
    done = run("weights", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "D? = 1" in done.stdout


def test_a_closed_standard_output_swallows_the_result():
    script = f'exec "{sys.executable}" -m chronofed weights >&-'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_reader_that_stops_is_no_failure():
    read, write = os.pipe()
    os.close(read)
    done = run("weights", "--rounds", "2000", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
