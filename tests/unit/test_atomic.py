"""Writes happen wholly or not at all."""

import errno
import os

import pytest

from chronofed.core import atomic
from chronofed.core.atomic import append_line, write_atomic
from chronofed.core.errors import StorageError


def test_replaces_the_content(tmp_path):
    path = tmp_path / "a"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch, function):
    path = tmp_path / "a"
    write_atomic(path, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    target = os if function == "fsync" else atomic.Path
    monkeypatch.setattr(target, function, full)
    with pytest.raises(StorageError, match=f"cannot write {path}: no space left on device; free"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(StorageError, match="no such file or directory"):
        write_atomic(tmp_path / "no" / "a", b"x")
    with pytest.raises(StorageError, match="no such file or directory"):
        append_line(tmp_path / "no" / "a", b"x")


def test_appends_lines(tmp_path):
    append_line(tmp_path / "a", b"one")
    append_line(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one\ntwo\n"


def test_a_line_cut_short_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "a"
    append_line(path, b"one")
    write, calls = os.write, []

    def short(descriptor, content):
        calls.append(content)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content[:2])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(StorageError, match="no space left"):
        append_line(path, b"two")
    assert path.read_bytes() == b"one\n"
