"""The files of a run."""

import json
import multiprocessing

import pytest

from chronofed.core.errors import RunError, StorageError
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
    directory.rewind(2)
    assert [line["round"] for line in directory.history()] == [1, 2]
    assert [line["round"] for line in directory.record("period_accuracy")] == [1, 2]
    assert directory.seconds() == {"total": 1.0, "train": 0.4}


def test_a_line_that_is_still_being_written_is_skipped(directory):
    directory.append({"round": 1}, {"total": 0.1})
    with (directory.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "tes')
    assert directory.history() == [{"round": 1}]
    directory.rewind(1)
    assert (directory.path / "metrics.jsonl").read_bytes() == b'{"round": 1}\n'


def test_a_damaged_line_is_named(directory):
    (directory.path / "metrics.jsonl").write_bytes(b'{"round": 1}\n\xff\xfe\n{"round": 3}\n')
    with pytest.raises(RunError, match=r"metrics.jsonl, line 2 is damaged"):
        directory.history()


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


def test_leftovers_of_a_killed_process_go(directory):
    (directory.checkpoints / ".00000001-ab.safetensors.123.tmp").write_bytes(b"part")
    (directory.path / ".spec.toml.9.tmp").write_bytes(b"part")
    remove_leftovers(directory.path)
    assert not [p for p in directory.path.rglob("*") if p.suffix == ".tmp"]
    assert directory.spec_path.exists()
