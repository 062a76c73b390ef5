"""Trained models: their description, their weights, and predictions from rows as they come."""

import json
import re

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import chronofed
from chronofed.core.errors import DataError, RunError
from chronofed.data.encoding import encode_features, encoded_names
from chronofed.data.in_memory import parts, to_columns
from chronofed.data.preparation import Feature, Preparation
from chronofed.models.description import (
    ColumnNames,
    ModelDescription,
    PersonalModel,
    digest,
    read_description,
)
from chronofed.models.exporting import example
from chronofed.models.personal import personal_path
from chronofed.models.trained import TrainedModel
from chronofed.models.weights import named_weights, write_weights
from chronofed.models.zoo import Custom, Mlp
from tests.helpers.trained import ABOUT, trained

FEATURES = (
    Feature("a", mean=2.0, deviation=4.0, gaps=True),
    Feature("sky", categories=("fog", "sun"), other=True),
)
TABLE = ModelDescription(
    model=Mlp((4,)),
    shape=(5,),
    classes=("no", "yes"),
    features=encoded_names(FEATURES, (5,)),
    preparation=Preparation(FEATURES, ("no", "yes")),
    columns=ColumnNames("y", "client", "time"),
)


def save(folder, model: TrainedModel, about=None, personal=()):
    """Write a model as a run does."""
    folder.mkdir(exist_ok=True)
    found = []
    for client, other in personal:
        path = personal_path(folder, client)
        path.parent.mkdir(exist_ok=True)
        found.append(PersonalModel(client, write_weights(path, named_weights(other.network), {})))
    weights = write_weights(
        folder / "model.safetensors", named_weights(model.network), {"task": "t"}
    )
    about = msgspec.structs.replace(
        about or model.about, digest=weights, personal=tuple(found), rounds=7
    )
    (folder / "model.json").write_bytes(about.to_json())
    return folder


def table_model(seed: int = 0) -> TrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TrainedModel(TABLE.model.build((5,), 2), TABLE, None)


@pytest.mark.parametrize("name", list(ABOUT))
def test_a_loaded_model_is_the_same(name, tmp_path):
    model = trained(name, tmp_path)
    loaded = chronofed.load_model(save(tmp_path / "model", model))
    x = example(model.about)
    assert torch.equal(loaded(x), model(x))
    assert not loaded.training
    assert loaded.about.rounds == 7
    # A run directory works as well as its folder.
    assert torch.equal(chronofed.load_model(tmp_path)(x), model(x))
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert weights.keys() == model.network.state_dict().keys()
    assert all(torch.equal(weights[n], t) for n, t in model.network.state_dict().items())


def test_loading_leaves_the_global_generator_alone(tmp_path):
    save(tmp_path / "model", trained("mlp", tmp_path))
    before = torch.random.get_rng_state()
    chronofed.load_model(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_predictions_of_a_table(tmp_path):
    model = chronofed.load_model(save(tmp_path / "m", table_model()))
    rows = {"a": [10.0, None, "-2"], "sky": ["sun", "", "snow"], "other": [1, 2, 3]}
    by_hand = [[2, 0, 0, 1, 0], [0, 1, 0, 0, 1], [-1, 0, 0, 0, 1]]
    assert model.prepare(rows).tolist() == by_hand
    assert model.features == ("a", "a is missing", "sky = fog", "sky = sun", "sky is other")
    shares = model.predict(rows)
    x = torch.tensor(by_hand, dtype=torch.float32)
    assert torch.equal(shares, model(x).softmax(1).detach())
    assert torch.equal(model.predict(x), shares)
    assert not shares.requires_grad
    as_rows = [dict(zip(rows, cells, strict=True)) for cells in zip(*rows.values(), strict=True)]
    assert torch.equal(model.predict(as_rows), shares)
    (tmp_path / "rows.csv").write_text("sky,a\nsun,10\n,\nsnow,-2\n")
    assert torch.equal(model.predict(tmp_path / "rows.csv"), shares)
    assert torch.equal(model.predict(str(tmp_path / "rows.csv")), shares)


def test_a_data_frame(tmp_path):
    """Anything with ``columns``, ``to_dict`` and columns by name; pandas itself is not needed."""

    class Frame(dict):
        columns = ("a", "sky")

        def to_dict(self):
            raise NotImplementedError

    frame = Frame(a=np.array([10.0, np.nan]), sky=np.array(["sun", None], dtype=object))
    model = chronofed.load_model(save(tmp_path / "m", table_model()))
    assert model.prepare(frame).tolist() == [[2, 0, 0, 1, 0], [0, 1, 0, 0, 1]]


def test_numbers_are_in_the_units_of_the_target(tmp_path):
    model = trained("number", tmp_path)
    x = example(model.about)
    assert torch.equal(model.predict(x), model(x).detach().double()[:, 0] * 7 + 100)
    assert model.about.task == "regression"
    assert model.predict(x[:1]).shape == (1,)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": [1.0]}, "rows: no column 'sky'; it has a"),
        ({"a": [1.0], "Sky": ["sun"]}, "no column 'sky'; did you mean 'Sky'?"),
        ({"a": ["x"], "sky": ["sun"]}, "feature 'a' contains text"),
        ({"a": [1.0, 2.0], "sky": ["sun"]}, "rows"),
        (5, "cannot predict from a int: expected a file, a table of columns or a list of rows"),
        ([], "cannot predict from a list"),
        (torch.zeros(2, 4), "samples of shape (4,), not (5,)"),
        (
            torch.zeros(2, 5, dtype=torch.uint8),
            "numbers of torch.uint8, where the model needs float",
        ),
        ("nothing.csv", "nothing.csv: no such file"),
    ],
)
def test_bad_rows(rows, message, tmp_path):
    with pytest.raises(DataError, match=re.escape(message)):
        table_model().predict(rows)


def test_images_must_be_bytes(tmp_path):
    """A model would take other numbers as scaled already."""
    model = trained("cnn", tmp_path)
    x = example(model.about)
    np.savez(tmp_path / "images.npz", x=x.numpy())
    assert torch.equal(model.predict(tmp_path / "images.npz"), model.predict(x))
    np.savez(tmp_path / "wide.npz", x=x.numpy().astype(np.int64))
    with pytest.raises(DataError, match=r"numbers of torch\.float32, where the model needs uint8"):
        model.predict(tmp_path / "wide.npz")


def test_personal_models(tmp_path):
    others = {"north/2": table_model(1), "..": table_model(2), "A": table_model(3)}
    loaded = chronofed.load_model(save(tmp_path / "m", table_model(), personal=others.items()))
    x = torch.randn(3, 5)
    assert loaded.clients == tuple(others)
    for client, other in others.items():
        assert torch.equal(loaded.personal(client)(x), other(x))
    with pytest.raises(DataError, match="no personal model of 'south'"):
        loaded.personal("south")


def test_files_of_personal_models(tmp_path):
    """Every name has a file of its own in the folder, where capitals count and where they do not."""
    long = ["x" * 300, "x" * 299 + "y"]
    names = ["a", "A", "a/b", "..", ".", "", "a b", "ä", "\udce4", "%41", "con\n", *long]
    paths = [personal_path(tmp_path, name) for name in names]
    assert len({path.name.lower() for path in paths}) == len(names)
    assert {path.parent for path in paths} == {tmp_path / "personal"}
    assert all(len(path.name.encode()) < 200 for path in paths)


def test_names_of_inputs():
    assert encoded_names((Feature("x"),), (1, 8, 8)) == ()
    assert encoded_names((Feature("x"),), (3,)) == ("x[0]", "x[1]", "x[2]")
    features = (Feature("a"), Feature("k", categories=("u", "v"), gaps=True))
    assert encoded_names(features, (4,)) == ("a", "k = u", "k = v", "k is missing")
    # The numbers of several arrays have no names.
    assert encoded_names(features, (9,)) == ()


def test_names_match_the_encoding():
    rows = {"a": [2.0, None], "sky": ["sun", "rain"]}
    x = encode_features(to_columns(rows), FEATURES, np.arange(2))
    named = [dict(zip(TABLE.features, row, strict=True)) for row in x.tolist()]
    assert named[0]["sky = sun"] == named[1]["sky is other"] == named[1]["a is missing"] == 1


def test_parts_are_the_table(tmp_path):
    columns = to_columns({"a": list(range(7)), "s": list("abcabca")})
    split = list(parts(columns, 7, 3))
    assert [part["a"].tolist() for part in split] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [part.text("s").tolist() for part in split] == [list("abc"), list("abc"), ["a"]]
    assert split[2]["s"].distinct == ["a"]
    assert "row 7" in str(split[2].cell_error("a", 0, "bad"))
    assert len(list(parts(columns, 0, 3))) == 1


def described(**changes) -> bytes:
    """A description with other entries and the right digest."""
    table = json.loads(TABLE.to_json()) | changes
    table.pop("self")
    return json.dumps(table | {"self": digest(json.dumps(table, sort_keys=True).encode())}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "was changed or is damaged"),
        (b"[]", "it is not a table"),
        (b"\xff", "was changed or is damaged"),
        (b"[" * 100_000, "too many values"),
        (TABLE.to_json().replace(b"yes", b"yet", 1), "it does not match its own digest"),
        (described(format=2), "has format 2, and this version of chronofed reads 1"),
        (described(shape=[-1]), "shape"),
        (described(zzz=1), "zzz: unknown key"),
        (described(dtype="load"), "dtype"),
        (described(model={"kind": "nope"}), "model.kind"),
        (described(model={"kind": "os:system"}), "built by code of your own, os:system"),
        (described(model={"kind": "custom", "factory": "os:abort"}), "of your own, os:abort"),
    ],
)
def test_bad_descriptions(content, message):
    with pytest.raises(RunError, match=re.escape(message)) as caught:
        read_description(content, "model.json")
    assert "\n" not in str(caught.value)


def test_a_description_survives():
    assert read_description(TABLE.to_json(), "model.json") == TABLE


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "flipped", "folder"])
def test_damaged_files(name, damage, tmp_path):
    path = save(tmp_path / "m", table_model()) / name
    content = path.read_bytes()
    path.unlink()
    flipped = bytearray(content)
    flipped[-3] ^= 1
    damaged = {"empty": b"", "cut": content[:-5], "flipped": bytes(flipped)}
    if damage in damaged:
        path.write_bytes(damaged[damage])
    elif damage == "folder":
        path.mkdir()
    with pytest.raises(RunError) as caught:
        chronofed.load_model(tmp_path / "m")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_weights_of_another_model(tmp_path):
    save(tmp_path / "m", table_model())
    about = msgspec.structs.replace(TABLE, model=Mlp((5,)))
    (tmp_path / "m" / "model.json").write_bytes(about.to_json())
    with pytest.raises(RunError, match=r"'fc\.weight' is F32\[2, 4\], not F32\[2, 5\]"):
        chronofed.load_model(tmp_path / "m")


@pytest.mark.parametrize("hidden", [(10**9,), (10**9, 10**9), (2**62, 2**62)])
def test_a_description_cannot_ask_for_memory(hidden, tmp_path):
    save(tmp_path / "m", table_model())
    content = described(model={"kind": "mlp", "hidden": list(hidden)})
    (tmp_path / "m" / "model.json").write_bytes(content)
    with pytest.raises(RunError, match=r"model\.(json|safetensors)"):
        chronofed.load_model(tmp_path / "m")


def test_nothing_there(tmp_path):
    with pytest.raises(RunError, match="neither a run directory nor the model of one"):
        chronofed.load_model(tmp_path / "nope")
    (tmp_path / "spec.toml").write_text("")
    with pytest.raises(RunError, match="has no model yet: a run leaves it at its end"):
        chronofed.load_model(tmp_path)


def test_own_code_needs_permission(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\ndef build(shape, classes):\n    return nn.Linear(*shape, classes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = Custom("own_net:build")
    about = ModelDescription(model=settings, shape=(5,), classes=("a", "b", "c"))
    model = TrainedModel(settings.build((5,), 3), about, tmp_path)
    save(tmp_path / "m", model)
    with pytest.raises(RunError, match=r"own_net:build; if you trust .* trust_code=True"):
        chronofed.load_model(tmp_path / "m")
    x = torch.randn(2, 5)
    assert torch.equal(chronofed.load_model(tmp_path / "m", trust_code=True)(x), model(x))
