"""Predictions for tables: order, files, personal models, and measures by hand."""

import csv
import io
import json
import math

import numpy as np
import pytest
import torch

from chronofed.core.errors import DataError
from chronofed.data.in_memory import to_columns
from chronofed.data.preparation import Feature, Preparation, Target
from chronofed.models import prediction as module
from chronofed.models.description import ColumnNames, ModelDescription, PersonalModel
from chronofed.models.prediction import Prediction
from chronofed.models.prediction_files import ENCODERS
from chronofed.models.prediction_measures import PredictionMeasures
from chronofed.models.trained import TrainedModel
from chronofed.models.zoo import Linear

ROWS = {
    "client": ["n", "s", "n", "e"],
    "time": ["2020-01", "2020-02", "2020-03", "2020-04"],
    "id": [7, 8, 9, 10],
    "a": [1.0, -1.0, 3.0, None],
}


def model(classes=("no", "yes"), slope=1.0, personal=()) -> TrainedModel:
    """The logits of a row are (0, slope a); a number is 10 + 2 slope a."""
    about = ModelDescription(
        model=Linear(),
        shape=(1,),
        classes=classes,
        scale=None if classes else Target("y", 10.0, 2.0),
        preparation=Preparation((Feature("a"),), classes),
        columns=ColumnNames("y", "client", "time"),
        personal=tuple(PersonalModel(client, "") for client in personal),
    )
    network = Linear().build((1,), about.outputs)
    with torch.no_grad():
        network.fc.bias.zero_()
        network.fc.weight.copy_(torch.tensor([[0.0], [slope]])[-about.outputs :])
    return TrainedModel(network, about, None)


def share(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def predicted(prediction: Prediction) -> list[dict]:
    found = list(prediction.parts())
    return [
        dict(zip(part, row, strict=True))
        for part in found
        for row in zip(*part.values(), strict=True)
    ]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_one_row_for_each_in_order(size, monkeypatch):
    monkeypatch.setattr(module, "PART_ROWS", size)
    prediction = Prediction(model(), to_columns(ROWS), keep=["id"])
    rows = predicted(prediction)
    assert prediction.header == ["client", "time", "id", "predicted", "p_no", "p_yes"]
    assert list(rows[0]) == prediction.header
    assert [row["id"] for row in rows] == ["7", "8", "9", "10"]
    assert [row["client"] for row in rows] == ROWS["client"]
    assert [row["predicted"] for row in rows] == ["yes", "no", "yes", "no"]
    expected = [share(1), share(-1), share(3), share(0)]
    assert [row["p_yes"] for row in rows] == pytest.approx(expected, abs=1e-6)
    assert prediction.rows == 4
    assert prediction.measures.result() == {}


def test_numbers():
    rows = predicted(Prediction(model(classes=()), to_columns(ROWS)))
    assert [row["predicted"] for row in rows] == [12.0, 8.0, 16.0, 10.0]


def test_personal_models_where_there_are_some(monkeypatch):
    own = {"n": model(slope=-2.0), "gone": model()}
    shared = model(personal=own)
    monkeypatch.setattr(TrainedModel, "personal", lambda self, client: own[client])
    prediction = Prediction(shared, to_columns(ROWS), personal=True)
    rows = predicted(prediction)
    expected = [share(-2), share(-1), share(-6), share(0)]
    assert [row["p_yes"] for row in rows] == pytest.approx(expected, abs=1e-6)
    assert prediction.personal_rows == 2


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({"client": ["n"]}, {}, "no column 'a'"),
        ({"a": [1.0]}, {"keep": ["b"]}, "no column 'b'"),
        ({"a": [1.0]}, {"personal": True}, "no personal models; the backbone 'ditto' makes them"),
        ({"a": [1.0], "p_no": [1]}, {"keep": ["p_no"]}, "column 'p_no' has a name that the predi"),
    ],
)
def test_bad_tables(rows, options, message):
    with pytest.raises(DataError, match=message):
        Prediction(model(), to_columns(rows), **options)


def test_personal_models_need_the_client():
    with pytest.raises(DataError, match="no column 'client'"):
        Prediction(model(personal=["n"]), to_columns({"a": [1.0]}), personal=True)


def test_measures_of_classes():
    """Class 1.0 is class 1; a gap does not count; an unknown class is wrong."""
    rows = {**ROWS, "y": ["1.0", "0", "", "7"]}
    prediction = Prediction(model(classes=("0", "1")), to_columns(rows))
    predicted(prediction)
    found = prediction.measures.result()
    loss = (-math.log(share(1)) - math.log(1 - share(-1))) / 2
    assert found == {"rows": 3, "accuracy": 2 / 3, "log_loss": pytest.approx(loss, abs=1e-6)}
    assert prediction.measures.unknown == 1


def test_measures_of_numbers(monkeypatch):
    """Errors are 2, 0, -2: MAE 4/3, RMSE sqrt(8/3); targets 10, 8, 18 lie 2, 4, 6 from their mean 12."""
    monkeypatch.setattr(module, "PART_ROWS", 2)
    rows = {**ROWS, "y": [10, 8, 18, None]}
    prediction = Prediction(model(classes=()), to_columns(rows))
    predicted(prediction)
    expected = {"rows": 3, "mae": 4 / 3, "rmse": math.sqrt(8 / 3), "r2": 1 - 8 / (4 + 16 + 36)}
    assert prediction.measures.result() == pytest.approx(expected)


def test_measures_of_few_rows():
    constant = PredictionMeasures(())
    constant.add(np.array([3.0, 3.0]), np.array([3.0, 4.0]))
    assert constant.result() == {"rows": 2, "mae": 0.5, "rmse": math.sqrt(0.5)}
    unknown = PredictionMeasures(("a", "b"))
    unknown.add(np.array([-1.0]), np.array([[0.5, 0.5]]))
    assert unknown.result() == {"rows": 1, "accuracy": 0.0}
    certain = PredictionMeasures(("a", "b"))
    certain.add(np.array([0.0]), np.array([[0.0, 1.0]], dtype=np.float32))
    assert math.isfinite(certain.result()["log_loss"])


def encoded(kind: str, rows=ROWS) -> bytes:
    return b"".join(ENCODERS[kind](Prediction(model(), to_columns(rows), keep=["id"])))


def test_files_agree(monkeypatch):
    monkeypatch.setattr(module, "PART_ROWS", 3)
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(encoded("parquet"))).to_pylist()
    lines = [json.loads(line) for line in encoded("jsonl").splitlines()]
    cells = list(csv.DictReader(io.StringIO(encoded("csv").decode())))
    assert [row["predicted"] for row in table] == ["yes", "no", "yes", "no"]
    for key in table[0]:
        for rows in (lines, cells):
            kind = np.float32 if key.startswith("p_") else str
            assert [kind(row[key]) for row in rows] == [kind(row[key]) for row in table]


def test_files_without_rows():
    none = {name: cells[:0] for name, cells in ROWS.items()}
    assert encoded("csv", none) == b"client,time,id,predicted,p_no,p_yes\n"
    assert encoded("jsonl", none) == b""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(encoded("parquet", none)))
    assert table.num_rows == 0
    assert [str(field.type) for field in table.schema][3:] == ["string", "float", "float"]


def test_names_with_commas_and_quotes():
    rows = {**ROWS, "client": ['a,"b', "c\nd", "e", "f"]}
    found = list(csv.DictReader(io.StringIO(encoded("csv", rows).decode(), newline="")))
    assert [row["client"] for row in found] == rows["client"]
