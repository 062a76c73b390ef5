"""Rows by purpose: blocks that never split overlapping windows, and validation beside test."""

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chronofed import Experiment, Table, load_data
from chronofed.core.errors import SpecError
from chronofed.core.types import Samples
from chronofed.data.dataset import Dataset, Origin
from chronofed.data.holdout import Holdout, with_validation
from chronofed.data.settings import Images
from chronofed.runs.built import build
from chronofed.training.evaluate import Evaluate


def order(rows):
    """Clients and periods of rows in time order, from the number of rows of each client by period."""
    pairs = [
        (client, period)
        for period in range(max(map(len, rows)))
        for client, counts in enumerate(rows)
        for _ in range(counts[period] if period < len(counts) else 0)
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T


tables = st.lists(st.lists(st.integers(0, 14), min_size=1, max_size=4), min_size=1, max_size=3)
shares = st.sampled_from([0.0, 0.1, 0.2, 0.5])


@pytest.mark.parametrize("rule", ["blocks", "latest"])
@given(tables, shares, shares, st.integers(0, 3), st.integers(0, 5))
def test_held_out_rows_keep_their_distance(rule, rows, test, validation, gap, seed):
    client, period = order(rows)
    split = Holdout(test, validation, rule, gap).split(client, period, seed)
    purposes = np.stack([split.train, split.validation, split.test])
    assert (purposes.sum(axis=0) <= 1).all()
    if not gap:
        assert (purposes.sum(axis=0) == 1).all()
    for who in range(len(rows)):
        own = purposes[:, client == who]
        for one, other in ((0, 1), (0, 2), (1, 2)):
            first, second = np.flatnonzero(own[one]), np.flatnonzero(own[other])
            if len(first) and len(second):
                # Windows of which neighbours up to ``gap`` rows apart overlap.
                assert np.abs(first[:, None] - second).min() > gap


@given(tables, shares, shares, st.integers(0, 3), st.booleans())
def test_later_periods_change_no_purpose(rows, test, validation, gap, blocks):
    rule = Holdout(test, validation, "blocks" if blocks else "random", gap if blocks else 0)
    client, period = order(rows)
    whole = rule.split(client, period, seed=0)
    early = period < 2
    part = rule.split(client[early], period[early], seed=0)
    for name in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(whole, name)[early], getattr(part, name))


@given(tables, shares, st.integers(0, 3), st.sampled_from(["blocks", "random", "latest"]))
def test_test_rows_do_not_depend_on_validation(rows, test, gap, rule):
    client, period = order(rows)
    one, other = (
        Holdout(test, share, rule, gap if rule != "random" else 0).split(client, period, seed=0)
        for share in (0.0, 0.2)
    )
    np.testing.assert_array_equal(one.test, other.test)
    assert not one.validation.any()


@pytest.mark.parametrize("rule", ["blocks", "random"])
def test_shares_are_those_of_every_client_and_period_but_never_all(rule):
    client, period = order([[20, 10], [1, 5]])
    split = Holdout(0.2, 0.1, rule).split(client, period, seed=0)
    group = 2 * client + period
    assert np.bincount(group[split.test], minlength=4).tolist() == [4, 2, 0, 1]
    assert np.bincount(group[split.validation], minlength=4).tolist() == [2, 1, 0, 1]
    most = Holdout(1.0, 1.0, rule).split(client, period, seed=0)
    assert np.bincount(group[most.train], minlength=4).tolist() == [1, 1, 1, 1]


def test_the_latest_are_the_last_periods_of_all_clients():
    client, period = order(
        [[6, 6, 6, 2], [0, 4, 4, 2], [2]]
    )  # by period 8, 10, 10 and 4 of 32 rows
    split = Holdout(0.1, rule="latest").split(client, period, seed=0)
    assert (period[split.test].tolist(), int(split.train.sum())) == ([3] * 4, 28)
    split = Holdout(0.4, 0.2, "latest").split(client, period, seed=0)
    # Of 14 or 4 rows, 14 are nearer to 12.8; of 18 that are left, 10 of period 1 are nearest to 3.6.
    assert sorted(set(period[split.test].tolist())) == [2, 3]
    assert set(period[split.validation].tolist()) == {1}
    assert set(period[split.train].tolist()) == {0}
    most = Holdout(1.0, rule="latest").split(client, period, seed=0)
    assert set(period[most.train].tolist()) == {0}


def test_a_gap_before_the_latest_is_taken_from_training():
    client, period = order([[3, 3], [3], [3, 1]])
    split = Holdout(0.3, gap=2, rule="latest").split(client, period, seed=0)
    left = np.bincount(client[split.train], minlength=3)
    # The second client has no test rows that its own could overlap with.
    assert left.tolist() == [1, 3, 1]
    assert np.bincount(client[split.test], minlength=3).tolist() == [3, 0, 1]


def test_a_block_is_of_rows_that_follow_each_other_at_any_place():
    client, period = order([[10]])
    places = set()
    for seed in range(200):
        held = np.flatnonzero(Holdout(0.3).split(client, period, seed).test)
        assert np.diff(held).tolist() == [1, 1]
        places.add(int(held[0]))
    assert places == set(range(8))


def test_overlapping_windows_of_a_table_are_never_split(tmp_path):
    # Windows of 4 measurements that start every 2.
    signal = np.random.default_rng(0).normal(size=500)
    count = 200
    x = np.stack([signal[2 * k : 2 * k + 4] for k in range(count)])
    np.savez(
        tmp_path / "w.npz",
        x=x,
        y=np.arange(count) % 2,
        client=np.zeros(count),
        time=np.arange(count),
    )

    def shared(**settings):
        data = Table("w.npz", period="20 rows", standardise=False, **settings).load(tmp_path, 0)
        train = set(data.train.x.flatten().tolist())
        held = (data.test.x, data.validation.x)
        return [sum(value in train for value in part.flatten().tolist()) for part in held]

    assert min(shared(holdout="random", validation=0.2)) > 50
    assert shared(validation=0.2, holdout_gap=1) == [0, 0]


def test_a_gap_is_for_blocks():
    with pytest.raises(ValueError, match=r"Table\.holdout_gap: random rows have no gap"):
        Table("data.csv", holdout="random", holdout_gap=1)


def test_rows_beside_a_block_are_noted(tmp_path):
    lines = [f"a,{k},{k % 2},1" for k in range(40)]
    (tmp_path / "data.csv").write_text("\n".join(["client,time,y,f", *lines]))
    data = Table("data.csv", period="40", holdout_gap=2).load(tmp_path, 0)
    left_out = 40 - len(data.train) - len(data.test)
    assert left_out in (3, 4)
    assert f"{left_out} rows left out: next to rows that are held out (holdout_gap)" in data.notes


# Validation rows of any data


def toy(origin=None):
    x = torch.arange(40.0)[:, None]
    return Dataset(
        "toy",
        Samples(x, (x[:, 0] % 4).long()),
        Samples(-x[1:5], x[1:5, 0].long()),
        tuple("abcd"),
        origin,
    )


def test_validation_is_taken_from_the_training_rows_of_every_class():
    codes = np.arange(40)
    data = toy(Origin(("a",), ("p",), codes, codes + 100, codes[:4], codes[:4]))
    split = with_validation(data, 0.2, seed=0)
    assert split.test is data.test
    assert np.bincount(split.validation.y).tolist() == [2, 2, 2, 2]
    both = torch.cat([split.train.x, split.validation.x]).flatten()
    assert sorted(both.tolist()) == list(range(40))
    assert split.origin.train_client.tolist() == split.train.x.flatten().tolist()
    assert split.origin.validation_period.tolist() == (split.validation.x + 100).flatten().tolist()
    assert not torch.equal(split.validation.x, with_validation(data, 0.2, seed=1).validation.x)


def test_evaluation_on_validation_rows_has_no_test_rows():
    codes = np.arange(40)
    data = toy(Origin(("a",), ("p",), codes, codes, codes[:4], codes[:4]))
    split = with_validation(data, 0.2, seed=0)
    assert split.evaluated_on("test") is split
    chosen = split.evaluated_on("validation")
    assert chosen.test is split.validation
    assert chosen.origin.test_client.tolist() == split.origin.validation_client.tolist()
    assert len(data.evaluated_on("validation").test) == 0


def experiment(share, on):
    return Experiment(data=Images(validation=share), evaluate=Evaluate(on=on), rounds=1)


def test_without_a_share_images_are_as_they_were():
    plain, built = load_data("fashion-mnist-mini"), build(experiment(0.0, "test")).task.data
    assert built.validation is None
    assert torch.equal(built.train.x, plain.train.x)
    assert torch.equal(built.test.x, plain.test.x)


def test_images_have_validation_rows_of_the_training_rows():
    plain = load_data("fashion-mnist-mini")
    data = build(experiment(0.1, "validation")).task.data
    assert len(data.test) == len(plain.train) // 10
    assert len(data.train) + len(data.test) == len(plain.train)
    assert torch.equal(build(experiment(0.1, "test")).task.data.test.x, plain.test.x)


def test_validation_that_is_not_there_is_refused():
    with pytest.raises(SpecError, match=r"no validation samples; .*\(data\.validation\)"):
        build(experiment(0.0, "validation"))


def test_a_table_too_small_for_validation_says_why(tmp_path):
    (tmp_path / "data.csv").write_text("client,time,y,f\na,1,0,1\na,2,1,2\n")
    data = Table(str(tmp_path / "data.csv"), period="10", test=0.0, validation=0.2)
    spec = msgspec.structs.replace(experiment(0.0, "validation"), data=data)
    with pytest.raises(SpecError, match=r"0\.2 of every client-period is less than one"):
        build(spec)
