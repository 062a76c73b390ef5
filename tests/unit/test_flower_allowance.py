"""A node may send what its orders allow, and not much more."""

import json
import sqlite3
from contextlib import closing

import pytest

from chronofed.flower import allowance
from chronofed.flower.allowance import Allowance, Excess, stored_bytes

SPARE = 1000
NUMBERS = {"a": "11", "b": "22"}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(allowance, "SPARE_BYTES", SPARE)
    return tmp_path / "allowed.json", tmp_path / "pushed.log"


def push(log, name, size):
    with log.open("a") as file:
        file.write(json.dumps({"node": name, "bytes": size}) + "\n")


def test_a_node_may_send_every_reply_twice_and_some_more(files):
    allowed, log = files
    given, excess = Allowance(allowed), Excess(*files)
    given.add([11], 100)
    given.add([11, 22], 100)
    # Two orders, each twice, what is spare, and one order of before.
    push(log, "a", 400 + SPARE + 200)
    push(log, "b", 200 + SPARE + 200)
    assert excess.look(NUMBERS) == {}
    push(log, "b", 1)
    assert excess.look(NUMBERS) == {"b": 200 + SPARE + 201}
    assert excess.names == {"b"}
    # It is told once.
    push(log, "b", 1)
    assert excess.look(NUMBERS) == {}


def test_orders_of_before_the_start_allow_nothing_more(files):
    allowed, log = files
    Allowance(allowed).add([22], 100)
    push(log, "b", 10**9)
    excess = Excess(*files)
    assert excess.look(NUMBERS) == {}
    push(log, "b", SPARE + 201)
    assert excess.look(NUMBERS) == {"b": SPARE + 201}


def test_a_server_that_starts_again_goes_on_counting(files):
    allowed, _ = files
    for _ in range(2):
        Allowance(allowed).add([11], 50)
    assert json.loads(allowed.read_text()) == {"11": 200, "largest": 100}
    assert Excess(*files).largest == 100


def test_a_line_that_is_not_complete_waits_and_a_new_log_is_read_from_its_start(files):
    _, log = files
    excess = Excess(*files)
    push(log, "a", SPARE)
    with log.open("a") as file:
        file.write('{"node": "a", ')
    assert excess.look(NUMBERS) == {}
    with log.open("a") as file:
        file.write('"bytes": 1}\n')
    assert excess.look(NUMBERS) == {"a": SPARE + 1}
    log.unlink()
    push(log, "b", SPARE + 1)
    assert excess.look(NUMBERS) == {"b": SPARE + 1}


def test_damaged_files_stop_nobody(files):
    allowed, log = files
    allowed.write_text('{"11"')
    excess = Excess(*files)
    log.write_text('{"node": \n[]\n{"node": "a"}\nnull\n')
    push(log, "a", SPARE + 1)
    assert excess.look(NUMBERS) == {"a": SPARE + 1}
    Allowance(allowed).add([11], 1)
    assert json.loads(allowed.read_text())["11"] == 2


def test_a_node_that_was_removed_is_forgotten(files):
    _, log = files
    excess = Excess(*files)
    push(log, "a", SPARE + 1)
    assert excess.look(NUMBERS)
    excess.forgive({"b"})
    assert excess.names == set()
    assert excess.look(NUMBERS) == {}


def test_what_was_deleted_does_not_count(tmp_path):
    path = tmp_path / "x.db"
    assert stored_bytes(path) == 0
    with closing(sqlite3.connect(path)) as database:
        with database:
            database.execute("CREATE TABLE t (content)")
            database.execute("INSERT INTO t VALUES (?)", (bytes(10**6),))
        full = stored_bytes(path)
        assert full > 10**6
        with database:
            database.execute("DELETE FROM t")
    assert stored_bytes(path) < full / 10
    assert path.stat().st_size > 10**6
