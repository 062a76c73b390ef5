"""Rows to predict from earlier rows: history, order, gaps and parts, by hand."""

import json

import msgspec
import numpy as np
import pytest
import torch

from chronofed.core.errors import DataError, RunError
from chronofed.data.forecast import Forecast
from chronofed.data.in_memory import to_columns
from chronofed.data.preparation import Feature, Preparation, Target
from chronofed.models import prediction as module
from chronofed.models.description import (
    ColumnNames,
    ModelDescription,
    PersonalModel,
    digest,
    read_description,
)
from chronofed.models.prediction import Prediction
from chronofed.models.prediction_files import ENCODERS
from chronofed.models.trained import TrainedModel
from chronofed.models.zoo import Linear

# Not in time order; the last row of a has no target yet, and one row has no client.
ROWS = {
    "client": ["a", "b", "a", "", "b", "a"],
    "time": [3, 1, 1, 2, 2, 2],
    "f": [30.0, 100.0, 10.0, 5.0, 200.0, 20.0],
    "y": [None, 7.0, 1.0, 9.0, 8.0, 2.0],
}
NAN = float("nan")


def model(forecast: Forecast, classes=(), personal=(), **columns: str) -> TrainedModel:
    """The number is f + 1000 lag, where a missing lag is 0 (a gap is the mean); class 1 from 1500 on."""
    names = ["f", *forecast.names]
    features = tuple(Feature(name, gaps=name != "f") for name in names)
    about = ModelDescription(
        model=Linear(),
        shape=(2 * len(names) - 1,),
        classes=classes,
        scale=None if classes else Target("y", 0.0, 1.0),
        preparation=Preparation(features, classes),
        columns=ColumnNames(**{"target": "y", "client": "client", "time": "time"} | columns),
        forecast=forecast,
        personal=tuple(PersonalModel(client, "") for client in personal),
    )
    network = Linear().build(about.shape, about.outputs)
    weight = torch.tensor([[1.0, *([1000.0, 0.0] * len(forecast.names))]])
    with torch.no_grad():
        network.fc.weight.copy_(torch.cat([0 * weight, weight])[-about.outputs :])
        network.fc.bias.copy_(torch.tensor([0.0, -1500.0]) if classes else torch.zeros(1))
    return TrainedModel(network, about, None)


def predicted(forecast: Forecast, rows=ROWS, **columns) -> list[float]:
    return model(forecast, **columns).predict(rows).tolist()


LAG = Forecast((1,), ("y",))
AHEAD = Forecast((2,), ("y",), 1)


def test_a_lag_is_the_value_of_the_clients_row_before():
    assert predicted(LAG) == [2030.0, 100.0, 10.0, 5.0, 7200.0, 1020.0]
    x = model(LAG).prepare(ROWS)
    assert x[:, 2].tolist() == [0, 1, 1, 1, 0, 0]


def test_the_first_row_may_be_the_one_to_predict():
    later = {"client": "a", "time": 4}
    rows = [dict(zip(ROWS, cells, strict=True)) for cells in zip(*ROWS.values(), strict=True)]
    assert predicted(AHEAD, [later, *rows])[:2] == [2030.0, 1020.0]


def test_a_horizon_takes_the_features_of_the_origin():
    """Row a3 from a2, whose row before is a1; b2 from b1, which has none before."""
    found = predicted(AHEAD)
    assert found == pytest.approx([1020.0, NAN, NAN, NAN, 100.0, 10.0], nan_ok=True)
    only = predicted(Forecast((), (), 1))
    assert only == pytest.approx([20.0, NAN, NAN, NAN, 100.0, 10.0], nan_ok=True)


def test_without_client_and_time_the_rows_are_one_history():
    found = predicted(LAG, client="", time="")
    assert found == [30.0, 100.0, 7010.0, 1005.0, 9200.0, 8020.0]
    assert predicted(Forecast((), (), 5), client="", time="")[-1] == 30.0
    none = {name: cells[:0] for name, cells in ROWS.items()}
    assert predicted(AHEAD, none) == []


def test_times_are_read_as_in_training():
    """By %d/%m the first of February comes after the second of January; 01:30+02:00 is before 00:00 in UTC."""
    rows = {"client": ["a", "a"], "time": ["01/02/24", "02/01/24"], "f": [1, 2], "y": [3, 4]}
    days = Forecast((1,), ("y",), 0, "%d/%m/%y")
    assert predicted(days, rows) == [4001.0, 2.0]
    assert predicted(msgspec.structs.replace(days, date_format="%m/%d/%y"), rows) == [1.0, 3002.0]
    rows["time"] = ["2024-01-01 00:00", "2024-01-01T01:30+02:00"]
    assert predicted(LAG, rows) == [4001.0, 2.0]
    zoned = Forecast((1,), ("y",), time_zone="Europe/Helsinki")
    assert predicted(zoned, rows) == [1.0, 3002.0]


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_one_line_for_each_row(size, kind, monkeypatch):
    monkeypatch.setattr(module, "PART_ROWS", size)
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    prediction = Prediction(model(AHEAD, ("0", "1")), to_columns(ROWS), keep=["f"])
    content = b"".join(ENCODERS[kind](prediction))
    assert [row["predicted"] for row in read(kind, content)] == ["0", None, None, None, "0", "0"]
    assert [float(row["f"]) for row in read(kind, content)] == ROWS["f"]
    assert [row["p_1"] is None for row in read(kind, content)] == [0, 1, 1, 1, 0, 0]


def read(kind: str, content: bytes) -> list[dict]:
    """Read predictions; an empty cell is None."""
    if kind == "jsonl":
        return [json.loads(line) for line in content.splitlines()]
    if kind == "csv":
        head, *rows = (line.split(",") for line in content.decode().splitlines())
        return [dict(zip(head, (cell or None for cell in row), strict=True)) for row in rows]
    import io

    from pyarrow.parquet import read_table

    return read_table(io.BytesIO(content)).to_pylist()


@pytest.mark.parametrize("size", [2, 100])
def test_measures_compare_with_the_row_that_is_predicted(size, monkeypatch):
    """Row a3 has no target; b2 is 8, predicted 100; a2 is 2, predicted 10."""
    monkeypatch.setattr(module, "PART_ROWS", size)
    prediction = Prediction(model(AHEAD), to_columns(ROWS))
    assert len(list(prediction.parts())) == (3 if size == 2 else 1)
    found = prediction.measures.result()
    assert (found["rows"], found["mae"]) == (2, (92 + 8) / 2)


def test_personal_models_of_the_rows_that_are_predicted(monkeypatch):
    shared = model(AHEAD, personal=["b"])
    own = model(AHEAD)
    with torch.no_grad():
        own.network.fc.bias.fill_(0.5)
    monkeypatch.setattr(TrainedModel, "personal", lambda self, client: own)
    prediction = Prediction(shared, to_columns(ROWS), personal=True)
    (found,) = prediction.parts()
    expected = [1020.0, NAN, NAN, NAN, 100.5, 10.0]
    assert found["predicted"].tolist() == pytest.approx(expected, nan_ok=True)
    assert prediction.personal_rows == 1


@pytest.mark.parametrize("name", ["y", "client", "time"])
def test_history_needs_its_columns(name):
    rows = {key: cells for key, cells in ROWS.items() if key != name}
    words = (
        f"rows: no column '{name}'; the model predicts from earlier rows, found by y, client, time"
    )
    with pytest.raises(DataError, match=words):
        model(LAG).predict(rows)


def test_bad_cells_keep_their_row():
    """The bad cell is used one row later, and named where it is."""
    rows = {**ROWS, "f": ["30", "100", "10", "5", "200", "x"]}
    with pytest.raises(DataError, match="rows, row 6, column 'f': 'x' is not a number"):
        model(AHEAD).predict(rows)
    with pytest.raises(DataError, match="has a column 'y lag 1', the name of a lag"):
        model(LAG).predict({**ROWS, "y lag 1": [0.0] * 6})
    with pytest.raises(DataError, match="no column 'f'"):
        model(LAG).predict({key: ROWS[key] for key in ("client", "time", "y")})


def test_images_with_a_horizon():
    """Bytes have no NaN: a row without an origin is 0 as a sample, and has no prediction."""
    about = ModelDescription(
        model=Linear(),
        shape=(1, 2, 2),
        dtype="uint8",
        classes=("no", "yes"),
        forecast=Forecast((), (), 1),
    )
    images = TrainedModel(Linear().build(about.shape, 2), about, None)
    columns = to_columns({"x": np.arange(1, 13, dtype=np.uint8).reshape(3, 1, 2, 2)})
    assert images.prepare(columns).flatten(1)[:, 0].tolist() == [0, 1, 5]
    assert images.predict(columns).isnan().any(1).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("forecast", "message"),
    [
        ({"lags": [1], "horizon": 2}, "lags: expected 2"),
        ({"time_zone": "Moon/Crater"}, "'Moon/Crater' is not a time zone"),
        ({"date_format": "%Q"}, "date_format"),
        ({"horizon": -1}, "horizon"),
    ],
)
def test_bad_descriptions(forecast, message):
    table = json.loads(model(LAG).about.to_json()) | {"forecast": forecast}
    table.pop("self")
    table["self"] = digest(json.dumps(table, sort_keys=True).encode())
    with pytest.raises(RunError, match=message) as caught:
        read_description(json.dumps(table).encode(), "model.json")
    assert "\n" not in str(caught.value)
    about = model(LAG).about
    assert read_description(about.to_json(), "model.json") == about
