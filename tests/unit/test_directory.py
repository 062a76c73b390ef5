"""The files of a run."""

import fcntl
import json
import multiprocessing

import pytest

from chronofed.core.errors import RunError, StorageError
from chronofed.runs import lock
from chronofed.runs.directory import RunDirectory, remove_leftovers


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run", "name = 'x'\n", {"python": "3"})


def test_create_and_open(directory):
    assert RunDirectory.open(directory.path) == directory
    assert directory.spec_path.read_text() == "name = 'x'\n"
    assert directory.environment() == {"python": "3"}
    assert directory.state == "stopped"
    assert directory.summary() is None
    assert directory.history() == []


def test_a_run_is_never_overwritten(directory):
    with pytest.raises(RunError, match=r"holds a run already: continue it with 'chronofed resume"):
        RunDirectory.create(directory.path, "", {})


def test_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="is not a run directory"):
        RunDirectory.open(tmp_path)


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        RunDirectory.create(tmp_path / "file" / "run", "", {})


def test_records_and_rewinds(directory):
    for round_ in range(1, 5):
        directory.append(
            {"round": round_, "test_accuracy": round_ / 10},
            {"total": 0.5, "train": 0.2},
            {"period_accuracy": {"round": round_, "accuracy": []}},
        )
    directory.flush()
    content = (directory.path / "metrics.jsonl").read_bytes()
    directory.cut({"metrics.jsonl": 2 * len(content) // 4})
    assert directory.rewind("times.jsonl", 2) == 0
    assert [line["round"] for line in directory.history()] == [1, 2]
    assert directory.record("period_accuracy") == []
    assert directory.seconds() == {"total": 1.0, "train": 0.4}


def test_a_line_that_is_still_being_written_is_skipped(directory):
    directory.append({"round": 1}, {"total": 0.1})
    with (directory.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "tes')
    assert directory.history() == [{"round": 1}]
    assert directory.rewind("metrics.jsonl", 1) == 0
    assert (directory.path / "metrics.jsonl").read_bytes() == b'{"round": 1}\n'


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe", b"", b"5", b"{}", b'{"round": "2"}', b'{"round": 1}', b'{"round": 2, "x": []}'],
)
def test_a_damaged_line_is_named(directory, line):
    path = directory.path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\n' + line + b'\n{"round": 3}\n')
    with pytest.raises(RunError, match=r"metrics.jsonl, line 2 is damaged; repair it with: chron"):
        directory.history()


def test_damaged_lines_of_times_are_dropped(directory):
    (directory.path / "times.jsonl").write_bytes(b'{"round": 1}\n]\n{"round": 3}\n{"round": 4}\n{')
    assert directory.rewind("times.jsonl", 3) == 1
    assert (directory.path / "times.jsonl").read_bytes() == b'{"round": 1}\n{"round": 3}\n'


JSON = {
    "summary.json": (RunDirectory.summary, b'{"last": "much"}'),
    "scenario.json": (RunDirectory.scenario, b'{"rounds": 3}'),
    "environment.json": (RunDirectory.environment, b"[]"),
    "measures.json": (RunDirectory.measures, b'{"measures": 5}'),
    "failure.json": (RunDirectory.failure, b"7"),
}


@pytest.mark.parametrize("name", JSON)
def test_a_damaged_json_file_is_named(directory, name):
    read, wrong = JSON[name]
    for content in (b"", b'{"la', b"\xff", b"null", b"[" * 100_000, wrong):
        (directory.path / name).write_bytes(content)
        with pytest.raises(RunError, match=rf"{name} is damaged") as caught:
            read(directory)
        assert "\n" not in str(caught.value)
    (directory.path / name).unlink()
    (directory.path / name).mkdir()
    with pytest.raises(RunError, match=rf"{name} cannot be read: is a directory"):
        read(directory)


def test_records_of_a_finished_run_must_not_change(directory):
    directory.append({"round": 1, "test_accuracy": 0.5}, {"total": 1.0})
    directory.finish({"last": 0.5})
    names = ["spec.toml", "metrics.jsonl", "summary.json", "times.jsonl"]
    assert directory.changed_files(names) == []
    for name in names:
        content = (directory.path / name).read_bytes()
        (directory.path / name).write_bytes(content.replace(b"5", b"6").replace(b"x", b"y"))
    assert directory.changed_files(names) == names[:3]
    digests = directory.path / "digests.json"
    digests.write_bytes(digests.read_bytes().replace(b"a", b"b", 1))
    with pytest.raises(RunError, match=r"digests.json is damaged"):
        directory.changed_files(names)


def test_finishing(directory):
    directory.finish({"last": 0.5})
    assert directory.state == "finished"
    assert json.loads((directory.path / "summary.json").read_text()) == {"last": 0.5}
    assert directory.summary() == {"last": 0.5}


def hold(path, ready, done):
    with RunDirectory(path).lock():
        ready.set()
        done.wait(30)


def test_a_second_process_is_refused(directory):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=hold, args=(directory.path, ready, done))
    process.start()
    assert ready.wait(60)
    assert directory.state == "running"
    with pytest.raises(RunError, match="another process is using this run"), directory.lock():
        pass
    done.set()
    process.join()
    with directory.lock():
        assert directory.state == "running"
    assert directory.state == "stopped"


def test_a_reader_never_keeps_a_run_from_being_resumed(directory, monkeypatch):
    """However slow it is: here it stands still while it looks."""
    monkeypatch.setattr(lock, "_ATTEMPTS", 2)
    flock, met = fcntl.flock, []

    def slow(file, kind):
        flock(file, kind)
        if kind & fcntl.LOCK_SH:
            monkeypatch.setattr(fcntl, "flock", flock)
            with directory.lock():
                met.append(file.name)

    with directory.lock():
        pass
    monkeypatch.setattr(fcntl, "flock", slow)
    assert directory.state == "stopped"
    assert len(met) == 1


def test_leftovers_of_a_killed_process_go(directory):
    (directory.checkpoints / ".00000001-ab.safetensors.123.tmp").write_bytes(b"part")
    (directory.path / ".spec.toml.9.tmp").write_bytes(b"part")
    remove_leftovers(directory.path)
    assert not [p for p in directory.path.rglob("*") if p.suffix == ".tmp"]
    assert directory.spec_path.exists()
