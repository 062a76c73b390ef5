"""The model of a run, from the command line: kept, used, moved, extended, forgotten."""

import csv
import json
import shutil
import sqlite3
import warnings
from contextlib import closing

import msgspec
import numpy as np
import pytest
import torch

import chronofed
from chronofed.clients.deletion import Deletion
from chronofed.data.forecast import Forecast
from chronofed.runs import runner
from chronofed.runs.built import build
from chronofed.runs.checkpoint import load_latest
from chronofed.runs.directory import RunDirectory
from chronofed.runs.load_spec import load
from tests.corpus.runs_helper import write_data

DITTO = 'method={backbone={kind="ditto"}}'


class Stop(Exception):
    pass


@pytest.fixture
def spec(workdir):
    return write_data(workdir)


def files(folder) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_run_leaves_its_model(spec, workdir):
    experiment = load(spec)
    runner.run(experiment, workdir / "run")
    built = build(experiment)
    model = chronofed.load_model("run")
    snapshot, _ = load_latest(workdir / "run" / "checkpoints")
    objective = built.task.objective()
    objective.buffers = snapshot.buffers
    test = built.task.data.test.x
    assert torch.equal(model(test), objective.logits(snapshot.params, test))
    assert model.classes == built.task.data.classes
    assert model.about.preparation == built.task.data.preparation
    assert model.about.spec == built.experiment.fingerprint()
    assert model.about.clients == ("c0", "c1", "c2")
    assert model.about.last_period == "2024-06"
    # A model needs nothing else of the run.
    shutil.move(workdir / "run" / "model", workdir / "moved")
    assert torch.equal(chronofed.load_model("moved")(test), model(test))


def test_rows_are_prepared_as_in_training(spec, workdir):
    """The file that was trained on gives the training and test samples, in another order."""
    runner.run(load(spec), workdir / "run")
    data = build(load(spec)).task.data
    found = chronofed.load_model("run").prepare("rows.csv")
    every = torch.cat([data.train.x, data.test.x])
    assert sorted(found.tolist()) == sorted(every.tolist())


@pytest.mark.parametrize("changes", [[], [DITTO]])
def test_a_resumed_run_leaves_the_same_bytes(changes, spec, workdir):
    experiment = load(spec, changes)
    runner.run(experiment, workdir / "straight")

    def stop(progress):
        if progress.round == 3:
            raise Stop

    with pytest.raises(Stop):
        runner.run(experiment, workdir / "run", on_round=stop)
    assert not (workdir / "run" / "model").exists()
    runner.resume(RunDirectory(workdir / "run"))
    assert files(workdir / "run" / "model") == files(workdir / "straight" / "model")
    # A run that was stopped between its last checkpoint and its end has nothing left to train.
    expected = files(workdir / "run" / "model")
    shutil.rmtree(workdir / "run" / "model")
    (workdir / "run" / "summary.json").unlink()
    (workdir / "run" / ".model.1.tmp").mkdir()
    runner.resume(RunDirectory(workdir / "run"))
    assert files(workdir / "run" / "model") == expected
    assert not list((workdir / "run").glob(".*"))


def test_personal_models_and_a_deletion(spec, workdir):
    experiment = load(spec, [DITTO])
    runner.run(experiment, workdir / "run")
    model = chronofed.load_model("run")
    assert model.clients == ("c0", "c1", "c2")
    snapshot, _ = load_latest(workdir / "run" / "checkpoints")
    personal = snapshot.client_states[1].backbone_state["personal"]
    flat = torch.cat([p.reshape(-1) for p in model.personal("c1").parameters()])
    assert torch.equal(flat.detach(), personal)
    gone = personal.numpy().tobytes()
    changed = msgspec.structs.replace(experiment, deletions=(Deletion(5, clients=(1,)),))
    runner.run(changed, workdir / "deleted")
    assert chronofed.load_model("deleted").clients == ("c0", "c2")
    names = {path.name for path in (workdir / "deleted" / "model" / "personal").iterdir()}
    assert names == {"c0.safetensors", "c2.safetensors"}
    assert gone in b"".join(files(workdir / "run").values())
    assert gone not in b"".join(files(workdir / "deleted").values())


def test_an_old_model_does_not_outlive_a_deletion(spec, workdir):
    """While a run goes on that must forget, the model of its earlier end may hold what must go."""
    changed = msgspec.structs.replace(load(spec, [DITTO]), deletions=(Deletion(2, clients=(1,)),))
    runner.run(changed, workdir / "run")
    (workdir / "run" / "summary.json").unlink()
    shutil.rmtree(workdir / "run" / "checkpoints")
    (workdir / "run" / "model" / "personal" / "c1.safetensors").write_bytes(b"old")

    def stop(progress):
        raise Stop

    with pytest.raises(Stop):
        runner.resume(RunDirectory(workdir / "run"), on_round=stop)
    assert not (workdir / "run" / "model").exists()


def test_the_card(spec, workdir):
    words = 'card={licence="CC-BY-4.0",intended_use="to <b>test</b>",limits="not for people"}'
    runner.run(load(spec, [words, DITTO]), workdir / "run")
    text = (workdir / "run" / "model" / "README.md").read_text()
    for part in ("## Licence\n\nCC-BY-4.0", "not for people", "| personal models | 3 |"):
        assert part in text
    assert "6: 2024-01 to 2024-06" in text
    assert "Accuracy on the test set" in text
    plain = load(spec, ['name="a|b *c*"'])
    assert plain.fingerprint() == load(spec, [words]).fingerprint()
    runner.run(plain, workdir / "plain")
    text = (workdir / "plain" / "model" / "README.md").read_text()
    assert text.startswith("# a\\|b \\*c\\*\n")
    assert "## Licence\n\nnot stated" in text


def test_predict(cli, spec, workdir):
    runner.run(load(spec, [DITTO]), workdir / "run")
    code, out, err = cli("predict", "run", "rows.csv", "-o", "out.csv")
    assert (code, out) == (0, "")
    assert "240 rows predicted" in err
    rows, given = (
        list(csv.DictReader((workdir / name).read_text().splitlines()))
        for name in ("out.csv", "rows.csv")
    )
    assert [row["client"] for row in rows] == [row["client"] for row in given]
    right = np.mean([r["predicted"] == g["kind"] for r, g in zip(rows, given, strict=True)])
    assert f"accuracy {right:.4g}" in err
    code, out, err = cli("predict", "run/model", "rows.csv", "--personal", "--keep", "u")
    assert out.splitlines()[0].startswith("client,time,u,predicted,p_")
    assert "240 of them by the personal model of their client" in err
    code, out, _ = cli("predict", "run", "rows.csv", "-o", "x", "--format", "jsonl", "--json")
    assert json.loads(out)["measures"]["accuracy"] == pytest.approx(right)
    assert len((workdir / "x").read_text().splitlines()) == 240


def test_predict_without_a_target_and_a_damaged_row(cli, spec, workdir):
    runner.run(load(spec), workdir / "run")
    (workdir / "new.csv").write_text("u,v\n1,2\n,\n")
    code, out, err = cli("predict", "run", "new.csv")
    assert code == 0
    assert len(out.splitlines()) == 3
    assert "target" not in err
    (workdir / "new.csv").write_text("u,v\n1,2\n3,x\n")
    code, out, err = cli("predict", "run", "new.csv", "-o", "out.csv")
    assert code == 3
    assert "new.csv, row 3, column 'v': 'x' is not a number" in err
    assert not (workdir / "out.csv").exists()
    assert not list(workdir.glob(".*"))


def test_export(cli, spec, workdir):
    runner.run(load(spec, [DITTO]), workdir / "run")
    code, _, err = cli("export", "run")
    assert (code, err) == (0, "chronofed: safetensors: run.safetensors, run.json, run.py\n")
    code, out, _ = cli("export", "run", "-o", "c1.pt", "--personal", "c1", "--json")
    assert json.loads(out) == {"form": "torchscript", "files": ["c1.pt", "c1.json"]}
    x = torch.randn(2, 2)
    expected = chronofed.load_model("run").personal("c1")(x)
    with warnings.catch_warnings():
        # Torch says that TorchScript is deprecated.
        warnings.simplefilter("ignore")
        assert torch.equal(torch.jit.load("c1.pt")(x), expected)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_images_and_buffers(norm, workdir):
    """A run on images, whose model has running statistics, and a personal model its own."""
    (workdir / "spec.toml").write_text(
        f"""
        rounds = 2
        model = {{kind = "resnet18", width = 2, norm = "{norm}"}}
        method = {{backbone = {{kind = "ditto"}}}}
        scenario = {{kind = "subsets", clients = 2, subsets = 2}}
        train = {{steps = 1, batch_size = 4}}
        evaluate = {{every = 2, seen = 0, periods = "off"}}
        """
    )
    experiment = load(workdir / "spec.toml")
    runner.run(experiment, workdir / "run")
    model = chronofed.load_model("run")
    x = build(experiment).task.data.test.x[:5]
    assert model.about.dtype == "uint8"
    np.savez("images.npz", x=x.numpy())
    assert torch.equal(model.predict("images.npz"), model.predict(x))
    assert model.clients == ("0", "1")
    assert not torch.equal(model.personal("0")(x), model(x))


def test_a_model_of_the_user(cli, spec, workdir, monkeypatch):
    (workdir / "own_mlp.py").write_text(
        "from torch import nn\n"
        "def build(shape, classes, width):\n"
        "    return nn.Sequential(nn.Linear(*shape, width), nn.BatchNorm1d(width), nn.Linear(width, classes))\n"
    )
    monkeypatch.syspath_prepend(str(workdir))
    own = 'model={kind="custom",factory="own_mlp:build",options={width=3}}'
    runner.run(load(spec, [own, DITTO]), workdir / "run")
    code, _, err = cli("predict", "run", "rows.csv", "-o", "o.csv")
    assert code == 4
    assert "own_mlp:build" in err
    assert "--trust-code" in err
    assert cli("predict", "run", "rows.csv", "-o", "o.csv", "--trust-code")[0] == 0
    model = chronofed.load_model("run", trust_code=True)
    snapshot, _ = load_latest(workdir / "run" / "checkpoints")
    state = snapshot.client_states[2].backbone_state
    for found, buffers in ((model, snapshot.buffers), (model.personal("c2"), state["buffers"])):
        weights = found.network.state_dict()
        mean, variance = weights["1.running_mean"], weights["1.running_var"]
        assert torch.equal(torch.cat([mean, variance]), buffers[:6])
        assert weights["1.num_batches_tracked"] == buffers[6].round()


def test_a_number_in_the_units_of_the_target(cli, workdir):
    """A table of prices, whose scale is fitted; predictions and exported outputs are prices again."""
    lines = ["client,time,u,price"]
    lines += [
        f"c{k % 2},2024-0{1 + k // 40}-03,{k % 7},{1000 + 50 * (k % 7) + 0.5}" for k in range(120)
    ]
    (workdir / "t.csv").write_text("\n".join(lines) + "\n")
    (workdir / "spec.toml").write_text(
        'data = {kind = "table", path = "t.csv", target = "price", task = "regression"}\n'
        'model = {kind = "linear"}\nscenario = {kind = "periods", rounds_per_period = 5}\n'
        "train = {lr = 0.3, epochs = 4}\n"
    )
    experiment = load(workdir / "spec.toml")
    runner.run(experiment, workdir / "run")
    model = chronofed.load_model("run")
    target = build(experiment).task.data.preparation.target
    assert (model.about.task, model.classes, model.about.scale) == ("regression", (), target)
    x = model.prepare("t.csv")
    expected = model(x).detach().double()[:, 0] * target.deviation + target.mean
    assert torch.equal(model.predict("t.csv"), expected)
    prices = np.array([float(line.split(",")[3]) for line in lines[1:]])
    error = np.abs(expected.numpy() - prices).mean()
    assert error < 0.1 * prices.std()
    code, _, err = cli("predict", "run", "t.csv", "-o", "o.csv")
    assert code == 0
    assert f"MAE {error:.4g}" in err
    rows = list(csv.DictReader((workdir / "o.csv").read_text().splitlines()))
    assert list(rows[0]) == ["client", "time", "predicted"]
    assert [float(row["predicted"]) for row in rows] == pytest.approx(expected.tolist(), rel=1e-6)


def test_missing_values_are_marked_as_in_training(spec, workdir):
    """A number that stands for nothing must not become a feature."""
    text = (workdir / "rows.csv").read_text().splitlines()
    cells = [line.split(",") for line in text]
    for row in cells[1::9]:
        row[2] = "-999"
    (workdir / "rows.csv").write_text("\n".join(map(",".join, cells)) + "\n")
    experiment = load(spec, ['data.missing=["-999"]'])
    runner.run(experiment, workdir / "run")
    model, data = chronofed.load_model("run"), build(experiment).task.data
    assert sorted(model.features) == ["u", "u is missing", "v"]
    every = torch.cat([data.train.x, data.test.x])
    found = model.prepare("rows.csv")
    assert found[:, 1].sum() == len(cells[1::9])
    assert sorted(found.tolist()) == sorted(every.tolist())
    rows = [{"u": "-999", "v": 1.0}, {"u": None, "v": 1.0}]
    assert torch.equal(*model.prepare(rows))


LOADS = [
    f"{site},2024-{month:02d}-{day:02d},{(7 * day + month) % 11},{(day * day + k) % 13},"
    f"{['low', 'high'][day % 3 % 2]}"
    for month in (1, 2, 3)
    for day in range(1, 21)
    for k, site in enumerate(("east", "west"))
]


def forecast_run(workdir, target, *changes):
    """Train on a table in time order, with lags 1 and 2 and a target one row ahead."""
    (workdir / "loads.csv").write_text("\n".join(["site,day,wind,load,level", *LOADS]) + "\n")
    (workdir / "loads.toml").write_text(
        f"""
        data = {{kind="table", path="loads.csv", target="{target}", client="site", time="day", test=0.0}}
        model = {{kind="mlp", hidden=[6]}}
        scenario = {{kind="periods"}}
        """
    )
    lags = ["data.lags=[1,2]", "data.horizon=1", 'data.lag_columns=["load","level"]']
    experiment = load(workdir / "loads.toml", [*lags, *changes])
    runner.run(experiment, workdir / "run")
    return chronofed.load_model("run"), build(experiment).task.data.train


@pytest.mark.parametrize(
    ("target", "change"), [("level", "name='c'"), ("load", "data.task='regression'")]
)
def test_a_forecast_is_that_of_the_training_row(target, change, workdir):
    """Bit for bit, though the new table is read on its own; the first row of a client has no origin."""
    model, train = forecast_run(workdir, target, change)
    found, x = model.predict("loads.csv"), model.prepare("loads.csv")
    none = found.reshape(len(LOADS), -1).isnan().any(1)
    assert none.nonzero().flatten().tolist() == [0, 1]
    assert torch.equal(x[~none], train.x)
    assert torch.equal(found[~none], model.predict(train.x))
    assert x[none].isnan().all()
    # In any order of the rows.
    order = np.random.default_rng(0).permutation(len(LOADS))
    shuffled = [LOADS[k] for k in order]
    (workdir / "mixed.csv").write_text("\n".join(["site,day,wind,load,level", *shuffled]) + "\n")
    place = np.argsort(order)
    assert torch.equal(model.prepare("mixed.csv")[place][2:], train.x)


def test_predict_the_next_rows(cli, workdir):
    """Rows without a target are predicted from the history in the same table, and measured if they have it."""
    model, _ = forecast_run(workdir, "level", "data.date_format='%Y-%m-%d'")
    assert model.about.forecast == Forecast((1, 2), ("load", "level"), 1, "%Y-%m-%d")
    code, _, err = cli("predict", "run", "loads.csv", "-o", "all.csv")
    assert "118 rows predicted\n" in err
    assert "2 rows left empty: no row of their client so far before (data.horizon)" in err
    assert "on 118 rows with a target: accuracy" in err
    full = (workdir / "all.csv").read_text().splitlines()
    assert full[1] == "east,2024-01-01,,,"
    # The next day of one site comes first in the table, without anything but its keys.
    recent = ["west,2024-03-21,,,", *LOADS[-6:]]
    (workdir / "new.csv").write_text("\n".join(["site,day,wind,load,level", *recent]) + "\n")
    code, out, err = cli("predict", "run", "new.csv")
    assert code == 0
    lines = out.splitlines()
    assert lines[1].startswith("west,2024-03-21,")
    assert lines[1].split(",")[2] in ("low", "high")
    # Lags 1 and 2 are in the table from the third row of a site on.
    assert lines[6:] == full[-2:]
    (workdir / "new.csv").write_text("site,day,wind,level\neast,2024-03-20,1,low\n")
    code, _, err = cli("predict", "run", "new.csv", "-o", "o.csv")
    assert code == 3
    needed = "load, level, site, day"
    assert f"no column 'load'; the model predicts from earlier rows, found by {needed}" in err


def test_predict_the_answer_of_a_query(cli, spec, workdir):
    runner.run(load(spec), workdir / "run")
    with closing(sqlite3.connect("store.db")) as database:
        database.execute("CREATE TABLE seen (u REAL, v REAL)")
        database.executemany("INSERT INTO seen VALUES (?, ?)", [(1.5, 2.0), (3.5, None)])
        database.commit()
    code, out, _ = cli("predict", "run", "store.db", "--query", "SELECT * FROM seen ORDER BY u")
    assert code == 0
    expected = chronofed.load_model("run").predict({"u": [1.5, 3.5], "v": [2.0, None]})
    shares = [[float(cell) for cell in line.split(",")[1:]] for line in out.splitlines()[1:]]
    assert torch.allclose(torch.tensor(shares), expected, atol=1e-6)
    code, _, err = cli("predict", "run", "store.db")
    assert code == 3
    assert "store.db: a database needs a query" in err
