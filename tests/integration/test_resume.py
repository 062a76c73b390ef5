"""Resuming refuses what changed, and its advice holds when it is followed."""

import errno
import io
import os
import re
import shlex
import subprocess
import sys
import time

import pytest

from chronofed.runs import RunDirectory, checkpoint, environment, identity
from chronofed.runs.checkpoint import files
from tests.corpus.runs_helper import call, finish, make_run, results, rows, tree, write_data


@pytest.fixture
def spec(workdir):
    return write_data(workdir)


@pytest.fixture
def stopped(spec, workdir):
    return make_run(spec, workdir / "run", stop_after=5)


def refused(run, *words):
    """Resume a run; it is refused in one line and left as it was. Return the advice to start over."""
    before = tree(run.path)
    code, _, err = call("resume", run.path, "-q")
    (line,) = err.splitlines()
    assert code == 4
    assert all(word in line for word in words), line
    assert tree(run.path) == before
    return shlex.split(line[line.index("chronofed run") :])[1:]


def follow(advice, folder):
    """Start over as advised; return the rounds of the new run."""
    assert advice[-2:] == ["-o", "NEW"]
    assert call(*advice[:-1], folder / "new", "-q")[0] == 0
    return [line["round"] for line in RunDirectory(folder / "new").history()]


# --- data, settings, modules, versions ---------------------------------------------------------------


def appended(path):
    path.write_text(path.read_text() + rows(160, 240))


def relabelled(path):
    path.write_text(path.read_text().replace(",a\n", ",b\n", 3))


def shortened(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-20]))


def new_category(path):
    path.write_text(path.read_text() + rows(1, 240).replace(",a", ",new"))


def late(path):
    path.write_text(path.read_text() + rows(3, 237))


@pytest.mark.some(2)
@pytest.mark.parametrize("change", [late, relabelled, shortened])
def test_changed_data(change, stopped, workdir):
    change(workdir / "rows.csv")
    advice = refused(stopped, "changed since the run began: the data;")
    assert len(follow(advice, workdir)) == 6


@pytest.mark.parametrize("change", [appended, new_category])
def test_later_periods_wait_until_the_run_is_extended(change, stopped, spec, workdir):
    straight = make_run(spec, workdir / "straight")
    change(workdir / "rows.csv")
    assert call("resume", stopped.path, "-q")[0] == 0
    assert results(stopped.path) == results(straight.path)


def test_the_same_data_in_another_file_are_the_same(stopped, spec, workdir):
    path = workdir / "rows.csv"
    path.write_text(path.read_text().replace("client,time", '"client","time"'))
    assert call("resume", stopped.path, "-q")[0] == 0
    straight = make_run(spec, workdir / "straight")
    assert results(stopped.path) == results(straight.path)


def test_a_changed_spec(stopped, workdir):
    text = stopped.spec_path.read_text()
    stopped.spec_path.write_text(text.replace("hidden = [8]", "hidden = [9]"))
    advice = refused(stopped, f"{stopped.spec_path} was changed after the run had begun")
    assert len(follow(advice, workdir)) == 6
    # Without digests, the checkpoint knows.
    (stopped.path / "digests.json").unlink()
    refused(stopped, "changed since the run began: the settings in spec.toml;")


OWN = """
from chronofed import Backbone


class Own(Backbone):
    scale: float = 0.5

    def direction(self, grad, params, server, client):
        return grad * self.scale
"""


def test_a_changed_module_of_the_user(spec, workdir, monkeypatch):
    name = f"own_part_{os.getpid()}"
    module = workdir / f"{name}.py"
    module.write_text(OWN)
    monkeypatch.syspath_prepend(workdir)
    run = make_run(spec, workdir / "run", 5, **{"method.backbone.kind": f"{name}:Own"})
    assert f"module {name}" in run.digests().identity
    module.write_text(OWN.replace("0.5", "0.1"))
    refused(run, f"changed since the run began: your module {name};")
    module.write_text(OWN)
    assert call("resume", run.path, "-q")[0] == 0


def test_another_version_of_chronofed(stopped, monkeypatch):
    monkeypatch.setattr(identity, "version", lambda name: "99.0")
    refused(stopped, f"chronofed (was {environment.version('chronofed')}, is 99.0);")


def test_what_does_not_decide_the_result_may_change(stopped, spec, workdir):
    straight = make_run(spec, workdir / "straight")
    assert call("resume", stopped.path, "-q", "--engine", "threads", "--workers", 2)[0] == 0
    assert results(stopped.path) == results(straight.path)


# --- damage, and what is said about it ------------------------------------------------------------------


def test_the_advice_about_damaged_lines_repairs_them(stopped, spec, workdir):
    """The first version said: delete the lines from there on. Obeyed, it lost them."""
    straight = make_run(spec, workdir / "straight")
    path = stopped.path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"rubbish\n", *lines[3:]]))
    _, _, err = call("compare", straight.path, stopped.path)
    (advice,) = re.findall(r"line 3 is damaged; repair it with: (.*)", err)
    code, _, err = call(*shlex.split(advice)[1:], "-q")
    assert code == 0
    assert "metrics.jsonl, line 3 is damaged, which checkpoint 00000004" in err
    assert "resuming from round 2" in err
    assert results(stopped.path) == results(straight.path)


@pytest.mark.some(2)
@pytest.mark.parametrize("lost", [slice(0, 0), slice(0, 1), slice(2, 6), slice(1, 3)])
def test_lines_that_a_user_deleted_come_back(stopped, spec, workdir, lost):
    straight = make_run(spec, workdir / "straight")
    path = stopped.path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[lost]
    path.write_bytes(b"".join(lines))
    assert call("resume", stopped.path, "-q")[0] == 0
    assert results(stopped.path) == results(straight.path)


def test_all_advice_to_remove_a_file_holds(spec, workdir):
    run = make_run(spec, workdir / "run")
    for name in ("environment.json", "scenario.json", "digests.json"):
        (run.path / name).write_text("{")
        code, _, err = call("report", run.path, "-o", "page.html")
        assert code == 4
        assert f"{run.path / name} is damaged" in err.splitlines()[0]
        assert err.splitlines()[0].endswith("; remove it")
        (run.path / name).unlink()
        assert call("report", run.path, "-o", "page.html")[0] == 0


def test_damaged_checkpoints_do_not_count(stopped):
    newest = files(stopped.checkpoints)[0]
    newest.rename(newest.with_name("00000005-0.safetensors"))
    finish(stopped)
    left = files(stopped.checkpoints)
    assert [path.name[:8] for path in left] == ["00000006", "00000004"]
    assert all(checkpoint.load(path).round for path in left)


# --- a read-only file system ------------------------------------------------------------------------------


@pytest.fixture
def read_only(monkeypatch):
    """Make a folder read-only; permissions would not keep root from writing."""

    def read_only(folder):
        def guarded(function, writes):
            def call(path, *arguments, **options):
                if str(path).startswith(str(folder)) and writes(*arguments, **options):
                    raise OSError(errno.EROFS, "Read-only file system", str(path))
                return function(path, *arguments, **options)

            return call

        always = {"unlink": os.unlink, "replace": os.replace, "mkdir": os.mkdir, "rmdir": os.rmdir}
        for name, function in always.items():
            monkeypatch.setattr(os, name, guarded(function, lambda *_, **__: True))
        writes = lambda mode="r", *_, **__: mode not in ("r", "rb")  # noqa: E731
        monkeypatch.setattr(io, "open", guarded(io.open, writes))

    return read_only


def test_a_finished_run_on_a_read_only_file_system(spec, workdir, read_only):
    run = make_run(spec, workdir / "run")
    read_only(run.path)
    code, out, err = call("resume", run.path, "-q")
    assert (code, err) == (0, f"chronofed: {run.path} is finished; nothing to do\n")
    assert "tiny" in out


def test_a_stopped_run_on_a_read_only_file_system(stopped, read_only):
    before = tree(stopped.path)
    read_only(stopped.path)
    code, _, err = call("resume", stopped.path, "-q")
    assert code == 5
    assert err.startswith(f"chronofed: cannot write {stopped.path}/lock: read-only file system;")
    assert err.count("\n") == 1
    assert tree(stopped.path) == before


# --- signals -----------------------------------------------------------------------------------------------


ENDLESS = """
rounds = "forever"
engine = "serial"
state_cache_mb = 0.000001
[model]
kind = "linear"
[method.memory]
kind = "core-set"
[train]
steps = 1
"""


@pytest.mark.slow
def test_terminated_runs_leave_no_client_data_behind(workdir):
    (workdir / "endless.toml").write_text(ENDLESS)
    command = [sys.executable, "-m", "chronofed", "run", "endless.toml", "-o", "run", "-q"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    run = workdir / "run"
    while not (list(run.glob("client-states-*/*")) and list(run.glob("metrics.jsonl"))):
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    _, err = process.communicate()
    assert process.returncode == 143
    assert err == "\nchronofed: terminated; continue with: chronofed resume run\n"
    assert not list(run.glob("client-states-*"))
