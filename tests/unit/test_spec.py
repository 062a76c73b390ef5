"""Specification files: read, changed by options, resolved, fingerprinted."""

import tomllib

import msgspec
import pytest

from chronofed import CoreSet, Experiment, Method, Periods, Stateless, Table, Taylor, Train
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.core.spec_io import from_table, to_table
from chronofed.runs import load_spec, spec
from chronofed.runs.built import build
from chronofed.runs.spec import Checkpoint
from chronofed.training.evaluate import Evaluate


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "spec.toml"
        path.write_text(text)
        return path

    return write


def test_an_empty_file_is_the_default_experiment(write):
    assert load_spec.load(write("")) == Experiment()


def test_options_change_settings(write):
    path = write("rounds = 5\n[train]\nlr = 0.1\n")
    changed = load_spec.load(
        path, ["train.lr=0.05", "name=my run", "method.memory={kind='core-set', size=3}"]
    )
    assert changed.train.lr == 0.05
    assert changed.name == "my run"
    assert changed.method.memory == CoreSet(3)
    assert changed.rounds == 5


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train.lr", r"-s train.lr: expected KEY=VALUE"),
        ("=3", r"-s =3: expected KEY=VALUE"),
        ("rounds.x=3", r"-s rounds.x=3: rounds is not a table"),
        ("train.lrr=3", r"spec.toml: train.lrr: unknown key; did you mean 'lr'\?"),
        ("train.lr=fast", r"train.lr: expected float, got str 'fast'"),
    ],
)
def test_bad_options(write, option, message):
    with pytest.raises(SpecError, match=message):
        load_spec.load(write("rounds = 5"), [option])


def test_what_cannot_be_read(write, tmp_path):
    with pytest.raises(SpecError, match=r"none.toml: no such file or directory"):
        load_spec.load(tmp_path / "none.toml")
    with pytest.raises(SpecError, match=r"spec.toml: not valid TOML: .*line 1"):
        load_spec.load(write("rounds = ]"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"binary.toml: not valid TOML"):
        load_spec.load(tmp_path / "binary.toml")


def test_resolved_reads_back_the_same():
    original = Experiment(
        rounds=3,
        name='quotes " and \\ and ü',
        method=Method(memory=CoreSet(7)),
        scenario=Stateless(clients=3),
        data=Table(path="x.csv", features=("a", "b")),
    )
    assert from_table(tomllib.loads(original.resolved()), Experiment) == original


def test_a_whole_number_in_place_of_a_float_has_the_same_fingerprint():
    assert Experiment(train=Train(epochs=1, lr=1)).fingerprint() == (
        Experiment(train=Train(epochs=1.0, lr=1.0)).fingerprint()
    )
    # As it is read again from the directory of a run.
    taylor = Taylor(layers={"*": 1})
    there = Experiment(train=Train(epochs=2), method=Method(memory=taylor))
    assert from_table(to_table(there), Experiment).fingerprint() == there.fingerprint()


def test_fingerprint_counts_what_decides_the_result():
    base = Experiment(rounds=3)
    change = msgspec.structs.replace
    assert base.fingerprint() == change(base, name="other").fingerprint()
    assert base.fingerprint() == change(base, checkpoint=Checkpoint(every=1)).fingerprint()
    assert base.fingerprint() != change(base, seed=1).fingerprint()
    assert base.fingerprint() != change(base, train=Train(lr=0.06)).fingerprint()


def test_build_needs_rounds_where_the_scenario_has_no_end():
    with pytest.raises(SpecError, match=r"rounds: missing"):
        build(Experiment())


def test_build_refuses_a_client_memory_with_stateless_clients():
    experiment = Experiment(rounds=2, scenario=Stateless(), method=Method(memory=CoreSet()))
    with pytest.raises(
        IncompatibleError, match=r"^method.memory: CoreSet keeps its state on the client"
    ):
        build(experiment)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (Taylor(layers={"head.*": 1.0}), r"^method.memory.layers: no parameter .* matches head"),
        (CoreSet(select="herding", layer="nose"), r"^method.memory.layer: .*nose"),
    ],
)
def test_build_refuses_a_memory_that_does_not_fit_the_model(memory, message):
    with pytest.raises(SpecError, match=message):
        build(Experiment(rounds=2, method=Method(memory=memory)))


def test_build_refuses_data_without_a_test_set(tmp_path):
    rows = "".join(f"{k % 2},{k % 3},{k},{k}\n" for k in range(30))
    (tmp_path / "t.csv").write_text("y,client,time,x\n" + rows)
    data = Table(path=str(tmp_path / "t.csv"), period="10", test=0.0)
    with pytest.raises(SpecError, match=r"^data: no test samples; hold some rows out"):
        build(Experiment(data=data, scenario=Periods(), evaluate=Evaluate(protocol="holdout")))


def test_augmentation_reaches_the_objective():
    assert build(Experiment(rounds=1)).task.augment is None
    augmented = Experiment(rounds=1, data=spec.Images(augment="crop-flip"))
    assert build(augmented).task.augment is spec.crop_and_flip


def table_spec(path: str) -> str:
    return f'[data]\nkind = "table"\npath = "{path}"\n'


def test_a_table_is_found_beside_the_specification_or_in_a_data_folder(
    write, tmp_path, monkeypatch
):
    monkeypatch.delenv("CHRONOFED_DATA", raising=False)
    remote = tmp_path / "remote"
    remote.mkdir()
    (remote / "far.csv").write_text("")
    (tmp_path / "near.csv").write_text("")
    assert load_spec.load(write(table_spec("near.csv"))).data.path == str(tmp_path / "near.csv")
    found = load_spec.load(write(table_spec("far.csv")), data=remote)
    assert found.data.path == str(remote / "far.csv")
    monkeypatch.setenv("CHRONOFED_DATA", str(remote))
    assert load_spec.load(write(table_spec("far.csv"))).data.path == str(remote / "far.csv")
    with pytest.raises(
        SpecError, match=r"data.path: no file lost.csv in .*; give its folder with --data"
    ):
        load_spec.load(write(table_spec("lost.csv")))


def test_rounds_may_be_without_end_where_the_scenario_is():
    endless = Experiment(rounds="forever")
    assert build(endless).rounds == spec.FOREVER
    assert from_table(tomllib.loads(endless.resolved()), Experiment) == endless
    ends = Experiment(rounds="forever", scenario=Stateless(registered=40))
    with pytest.raises(
        SpecError, match=r"rounds: forever, but this scenario ends after \d+ rounds"
    ):
        build(ends)
