"""Experiments of one name are named by what differs, in short words."""

import pytest

from chronofed.reports.experiment_names import names_by_difference


def spec(lr=0.1, memory=None, **more):
    return {"train": {"lr": lr}, "method": {"memory": memory or {"kind": "forget"}}, **more}


def core(size, select="uniform"):
    return {"kind": "core-set", "size": size, "select": select}


@pytest.mark.parametrize(
    ("specs", "names"),
    [
        ([spec(0.0312345), spec(0.1)], ["lr 0.0312", "lr 0.1"]),
        # all digits where three would look the same
        ([spec(0.03121), spec(0.03122)], ["lr 0.03121", "lr 0.03122"]),
        # a kind speaks for itself, and says what its settings are
        ([spec(), spec(memory=core(20))], ["forget", "core-set"]),
        ([spec(memory=core(5)), spec(memory=core(20))], ["size 5", "size 20"]),
        ([spec(), spec(memory=core(5)), spec(memory=core(9))],
         ["forget", "core-set, size 5", "core-set, size 9"]),
        # the same word twice needs its place
        ([spec(model={"size": 1}, data={"size": 1}), spec(model={"size": 2}, data={"size": 3})],
         ["model size 1, data size 1", "model size 2, data size 3"]),
        ([spec(model={"hidden": [8, 16], "bias": True}), spec(model={"hidden": [], "bias": False})],
         ["hidden 8-16, bias on", "hidden none, bias off"]),
        ([spec(server={"server_lr": 1.0}), spec(server={"server_lr": 0.5})], ["server lr 1", "server lr 0.5"]),
    ],
)  # fmt: skip
def test_names(specs, names):
    assert names_by_difference(specs) == names


def test_too_many_settings_or_none_have_no_names():
    many = [{"a": {f"k{n}": n + place for n in range(5)}} for place in (0, 1)]
    assert names_by_difference(many) is None
    assert names_by_difference([spec(), spec()]) is None
    assert names_by_difference([spec(note="x" * 80), spec(note="y")]) is None
