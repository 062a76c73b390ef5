"""Two real clients with files of their own that grow during the run."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chronofed import CoreSet, Experiment, Linear, Method, Remote, Scaffold, Table, Train, run
from chronofed.cli.main import main
from chronofed.flower.local import LocalFederation
from chronofed.flower.messages import method_fingerprint
from chronofed.runs import RunDirectory
from chronofed.runs.built import build
from chronofed.runs.checkpoint import encode, load_latest
from tests.helpers.in_process import InProcess
from tests.helpers.trial import NEEDS_FLOWER, Trial, rounds_done, wait

pytestmark = NEEDS_FLOWER

ROUNDS, COUNT = 4, 8  # of the run; rows of a client in a round
SECRETS = (0.7182818, 0.6180339)  # winds that only these clients have measured
CLASSES = ("calm", "storm")
SOURCE = """
[source]
kind = "{kind}"
path = "{path}"
{query}
classes = ["calm", "storm"]
target = "weather"
time = "when"
id = "row"
features = [{{ name = "wind" }}, {{ name = "rain", mean = 1.0, deviation = 2.0 }}]
current = {{ kind = "each-round", count = {count} }}
"""


def rows(client: int, round_: int) -> list[tuple]:
    """What a client measures for one round: names, years, numbers and classes."""
    places = range(COUNT * round_, COUNT * (round_ + 1))
    return [
        (f"buoy{client}-{k}", f"{1960 + k}-03-01", SECRETS[client], k % 5, CLASSES[k % 2])
        for k in places
    ]


class Csv:
    """A client's rows in a text file."""

    def __init__(self, folder: Path):
        self.path = folder / "rows.csv"
        self.path.write_text("row,when,wind,rain,weather\n")
        source = SOURCE.format(kind="table-file", path="rows.csv", query="", count=COUNT)
        (folder / "source.toml").write_text(source)

    def append(self, new):
        with self.path.open("a") as file:
            file.write("".join(",".join(map(str, row)) + "\n" for row in new))


class Sqlite:
    """A client's rows in a database."""

    def __init__(self, folder: Path):
        self.path = folder / "rows.db"
        with sqlite3.connect(self.path) as file:
            file.execute("CREATE TABLE measured (row, 'when', wind, rain, weather)")
        file.close()
        query = 'query = "SELECT * FROM measured"'
        source = SOURCE.format(kind="sqlite", path="rows.db", query=query, count=COUNT)
        (folder / "source.toml").write_text(source)

    def append(self, new):
        with sqlite3.connect(self.path) as file:
            file.executemany("INSERT INTO measured VALUES (?, ?, ?, ?, ?)", new)
        file.close()


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """The server has a small table to test on."""
    path = tmp_path_factory.mktemp("server") / "test.csv"
    lines = [f"x,2024-01-{k + 1:02d},{k % 7},{k % 5},{CLASSES[k % 2]}\n" for k in range(20)]
    path.write_text("client,when,wind,rain,weather\n" + "".join(lines))
    table = Table(
        str(path), "weather", "client", "when", test=0.5, holdout="random", standardise=False
    )
    return Experiment(
        name="own",
        rounds=ROUNDS,
        data=table,
        model=Linear(),
        scenario=Remote(clients=2),
        method=Method(Scaffold(), CoreSet(size=3)),
        train=Train(steps=4, batch_size=4),
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory, experiment):
    """A run on real processes, during which the clients' files grew; the rows of a round come all at once."""
    folder = tmp_path_factory.mktemp("own")
    homes = [folder / f"client-{i}" for i in (0, 1)]
    for home in homes:
        home.mkdir()
    files = [Csv(homes[0]), Sqlite(homes[1])]

    def arrive(round_):
        for client, file in enumerate(files):
            file.append(rows(client, round_))

    arrive(0)
    with LocalFederation(folder / "flower") as federation:
        for client, home in enumerate(homes):
            own = {"source": str(home / "source.toml"), "state": str(home)}
            federation.start_node(client, None, None, max_age="36500 days", **own)
        trial = Trial(folder, federation, experiment, quorum=2)
        trial.submit()
        for round_ in range(1, ROUNDS):
            wait(lambda r=round_: rounds_done(trial.run) >= r, what=f"round {round_}")
            arrive(round_)
        trial.finish()
    return trial, homes


def client_store_of(home: Path) -> Path:
    (path,) = home.glob("*.sqlite")
    return path


def test_the_model_has_the_bits_of_the_same_rounds_in_this_process(done, experiment, tmp_path):
    trial, homes = done
    built = build(experiment)
    task, scenario = built.task, built.scenario
    nodes = [
        {"client": i, "state": str(tmp_path / str(i)), "source": str(home / "source.toml")}
        for i, home in enumerate(homes)
    ]
    here = InProcess(trial.app, nodes, method_fingerprint(experiment))
    *_, right = run(
        experiment.method, scenario, task, rounds=ROUNDS, train=experiment.train, engine=here
    )
    last, complaints = load_latest(trial.run / "checkpoints")
    assert not complaints
    assert last.round == ROUNDS
    assert encode(replace(last, engine={})) == encode(right)
    assert float(last.server["params"].norm()) > 0
    assert last.engine  # the server knows what lengths are usual


def test_rows_arrived_during_the_run(done):
    """Every round had to wait for its rows, and none was trained without them."""
    trial, _ = done
    assert {e["client"] for e in trial.events("joined")} == {0, 1}
    assert not trial.events("missing")
    assert not trial.events("refused")
    for event in trial.events("failed") + trial.events("skipped"):
        assert "has no data in round" in event["reason"]
    assert len(RunDirectory(trial.run).history()) == ROUNDS


def test_the_server_holds_none_of_their_rows(done):
    trial, homes = done
    single = torch.tensor(SECRETS, dtype=torch.float32)
    marks = [b"buoy0", b"buoy1", *(str(number).encode() for number in SECRETS)]
    marks += [number.tobytes() for number in (*single.numpy(), *single.double().numpy())]
    kept = client_store_of(homes[0]).read_bytes()
    assert single[:1].numpy().tobytes() in kept  # what is looked for can be found
    searched = 0
    for path in [*trial.run.rglob("*"), *trial.app.rglob("*"), *trial.federation.folder.rglob("*")]:
        if path.is_file():
            content = path.read_bytes()
            assert not [mark for mark in marks if mark in content], path
            searched += 1
    assert searched > 10


def test_what_a_client_keeps_can_be_seen_and_forgotten(done, capsys):
    _, homes = done
    for client, home in enumerate(homes):
        client_store = client_store_of(home)
        assert main(["client", "inspect", str(client_store), "--json"]) == 0
        seen = json.loads(capsys.readouterr().out)
        assert [d["round"] for d in seen["data_sets"]] == list(range(ROUNDS))
        assert [d["samples"] for d in seen["data_sets"]] == [3] * ROUNDS
        oldest = [row[0] for row in rows(client, 0)]
        assert (
            main(["client", "forget", str(client_store), "--rows", *oldest, "--yes", "--json"]) == 0
        )
        assert json.loads(capsys.readouterr().out) == {"samples": 3, "data_sets": 1}
        assert main(["client", "inspect", str(client_store), "--json"]) == 0
        left = json.loads(capsys.readouterr().out)
        assert [d["round"] for d in left["data_sets"]] == list(range(1, ROUNDS))
        assert left["forgotten_rows"] == COUNT
