"""The commands that inspect a client store and forget data."""

import io
import json
import sys
from datetime import UTC, datetime
from functools import partial

import pytest
import torch

from chronofed.clients.state import ClientState
from chronofed.clients.store import ClientStore, inspect
from chronofed.data.client_source import row_id
from chronofed.methods.memories import MemoryItem


@pytest.fixture
def path(tmp_path):
    """A client store with two data sets: rows a and b, row c."""
    path = tmp_path / "client.sqlite"
    kept = []
    for round_, rows in enumerate((["a", "b"], ["c"])):
        record = {
            "x": torch.full((len(rows), 3), 0.123 + round_),
            "y": torch.arange(len(rows)),
            "rows": torch.tensor([row_id(row) for row in rows]),
        }
        kept.append(MemoryItem(round_, 0, 70 + round_, 9, record))
    with ClientStore(path) as client_store:
        client_store.commit(
            "run 1, round 1", b"reply", ClientState({"control": torch.ones(2)}, tuple(kept))
        )
    return path


@pytest.fixture
def call(cli):
    return partial(cli, "client")


def test_inspect(call, path):
    code, out, _ = call("inspect", path)
    assert code == 0
    assert "3 samples of 2 data sets" in out
    assert "run 1, round 1" in out
    assert "0.123" not in out
    code, out, _ = call("inspect", path, "--json")
    seen = json.loads(out)
    assert [(each["key"], each["samples"], each["classes"]) for each in seen["data_sets"]] == [
        (70, 2, 2),
        (71, 1, 1),
    ]
    assert seen["order"] == "run 1, round 1"


def test_inspect_an_empty_one(call, tmp_path):
    with ClientStore(tmp_path / "new.sqlite"):
        pass
    code, out, _ = call("inspect", tmp_path / "new.sqlite")
    assert code == 0
    assert "0 samples of 0 data sets" in out
    assert "never" in out


def test_forget_rows(call, path):
    code, out, _ = call("forget", path, "--rows", "b", "unknown", "--yes")
    assert code == 0
    assert "removed 1 samples; nothing is left of 0 data sets" in out
    assert [each.samples for each in inspect(path).data_sets] == [1, 1]
    code, out, _ = call("inspect", path)
    assert "permanently forgotten: 2 rows\n" in out


def test_forget_before_a_date(call, path):
    code, out, _ = call("forget", path, "--before", "2020-01-01", "--yes", "--json")
    assert json.loads(out) == {"data_sets": 0, "samples": 0}
    tomorrow = f"{datetime.now(UTC).year + 1}-01-01"
    code, out, _ = call("forget", path, "--before", tomorrow, "--yes", "--json")
    assert (code, json.loads(out)) == (0, {"data_sets": 2, "samples": 3})
    assert f"all data before {tomorrow}" in call("inspect", path)[1]
    with ClientStore(path) as client_store:
        assert client_store.reply("run 1, round 1") == b"reply"
        assert client_store.client_state().backbone_state["control"].tolist() == [1, 1]


def test_forget_data_sets(call, path):
    assert call("forget", path, "--keys", "71", "--yes")[0] == 0
    assert [each.key for each in inspect(path).data_sets] == [70]


@pytest.mark.parametrize(("answer", "left"), [("y\n", 1), ("no\n", 2), ("", 2)])
def test_forgetting_asks(call, path, monkeypatch, answer, left):
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    code, _, err = call("forget", path, "--keys", "71")
    assert code == 0
    assert "Permanently forget" in err
    assert len(inspect(path).data_sets) == left


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["inspect", "none.sqlite"], 4, "none.sqlite: no such file"),
        (["forget", "none.sqlite", "--rows", "a", "--yes"], 4, "none.sqlite: no such file"),
        (["forget", "{path}"], 2, "client forget: give --before"),
        (["forget", "{path}", "--rows", "a"], 2, "confirm with --yes"),
        (["forget", "{path}", "--before", "soon", "--yes"], 2, "'soon' is not a date"),
        (["inspect", "{path}", "--rows", "a"], 2, "--rows works with client forget only"),
        (["inspect", "{path}", "--yes"], 2, "--yes works with client forget only"),
        (["inspect", "{folder}"], 4, "no such file"),
        (["inspect", "{text}"], 4, "damaged: file is not a database"),
    ],
)
def test_errors_are_one_line(call, path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (path.parent / "text").write_text("some text " * 100)
    places = {"path": path, "folder": path.parent, "text": path.parent / "text"}
    found, out, err = call(*(each.format(**places) for each in arguments))
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (path.parent / "none.sqlite").exists()


def test_a_client_store_in_use_is_one_line(call, path):
    with ClientStore(path):
        code, _, err = call("forget", path, "--rows", "a", "--yes")
        assert (code, err.count("\n")) == (4, 1)
        assert "another process is using this client store" in err
        assert call("inspect", path)[0] == 0
