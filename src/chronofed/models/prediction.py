"""Predictions for the rows of a table, part by part, in the order of the rows."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chronofed.core.errors import DataError
from chronofed.data.columns import Columns, missing
from chronofed.data.in_memory import parts
from chronofed.models.prediction_measures import PredictionMeasures
from chronofed.models.trained import TrainedModel

PART_ROWS = 50_000
"""Rows that are encoded at a time."""
LOADED_MODELS = 32
"""Personal models that are held in memory."""
PREDICTED = "predicted"
"""Column of the predicted class or number; ``p_CLASS`` has the probability of a class."""

Cells: TypeAlias = Sequence[Any] | NDArray[Any]
Part: TypeAlias = Mapping[str, Cells]
"""Columns of some rows by name."""


class Prediction:
    """Predictions of a model for a table.

    Attributes:
        model: The model.
        columns: The table.
        measures: Quality of the predictions so far, where the table has the target; else empty.
        rows: Rows so far.
        empty_rows: Rows so far without a prediction: their client has no row so far before (horizon).
        personal_rows: Rows so far that were predicted by a personal model.
    """

    def __init__(
        self,
        model: TrainedModel,
        columns: Columns,
        personal: bool = False,
        keep: Sequence[str] = (),
    ) -> None:
        """Check that the table has what the model needs.

        Args:
            model: The model.
            columns: The table.
            personal: Predict rows of a client with its personal model, where it has one.
            keep: Columns to copy to the output.

        Raises:
            DataError: If a column is missing.
        """
        self.model, self.columns = model, columns
        self.measures = PredictionMeasures(model.classes)
        self.rows = self.empty_rows = self.personal_rows = 0
        self._names = model.about.columns
        self._personal = personal
        if personal:
            self._check_personal()
        self._copied = self._identity(keep)
        self._inputs = model.inputs(columns, self._copied)
        self._load = lru_cache(maxsize=LOADED_MODELS)(model.personal)

    @property
    def header(self) -> list[str]:
        """Names of the columns of every part."""
        return [*self._copied, PREDICTED, *(f"p_{name}" for name in self.model.classes)]

    def parts(self) -> Iterator[Part]:
        """Predict part by part."""
        tables = parts(self.columns, self._inputs.count, PART_ROWS)
        for table, inputs in zip(tables, self._inputs.parts(PART_ROWS), strict=True):
            outputs = inputs.spread(self._outputs(inputs.columns))
            self.rows += len(outputs)
            self.empty_rows += inputs.count - len(inputs.place)
            self._measure(table, outputs)
            yield {
                **{name: table.text(name).tolist() for name in self._copied},
                **self._shown(outputs),
            }

    def _identity(self, keep: Sequence[str]) -> list[str]:
        """Return the columns to copy: client and time, where the table has them, and those asked for."""
        own = [
            name for name in (self._names.client, self._names.time) if name in self.columns.arrays
        ]
        names = list(dict.fromkeys([*own, *keep]))
        taken = {PREDICTED, *(f"p_{name}" for name in self.model.classes)} & set(names)
        if taken:
            problem = f"column {min(taken)!r} has a name that the predictions need; rename it"
            raise DataError(f"{self.columns.path}: {problem}")
        return names

    def _check_personal(self) -> None:
        if not self.model.clients:
            raise DataError(
                f"{self.model.folder}: no personal models; the backbone 'ditto' makes them"
            )
        # Refused with the nearest name if it is missing.
        self.columns[self._client]

    @property
    def _client(self) -> str:
        return self._names.client or "client"

    def _outputs(self, table: Columns) -> Tensor:
        x = self.model.encode(table)
        if not self._personal:
            return self.model.predict(x)
        who = table.text(self._client)
        outputs = self.model.predict(x)
        for client in sorted(set(who.tolist()) & set(self.model.clients)):
            own = torch.from_numpy(np.flatnonzero(who == client))
            outputs[own] = self._load(client).predict(x[own])
            self.personal_rows += len(own)
        return outputs

    def _shown(self, outputs: Tensor) -> dict[str, Cells]:
        """Return predicted classes and their probabilities, or numbers; None and NaN where there is nothing."""
        numbers = outputs.numpy()
        if not self.model.classes:
            return {PREDICTED: numbers}
        names = np.array(self.model.classes, dtype=object)
        found = {f"p_{name}": numbers[:, k] for k, name in enumerate(self.model.classes)}
        likely = names[numbers.argmax(1)]
        likely[_empty(numbers)] = None
        return {PREDICTED: likely.tolist(), **found}

    def _measure(self, table: Columns, outputs: Tensor) -> None:
        """Compare predictions with the target of the rows that have one."""
        name = self._names.target
        if not name or name not in table.arrays:
            return
        if self.model.classes:
            target = _class_codes(table.text(name), self.model.classes)
        else:
            target = table.numbers(name)
        numbers = outputs.numpy()
        known = ~(_empty(numbers) | missing(target.astype(np.float64)))
        self.measures.add(target[known], numbers[known])


def _empty(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the rows without a prediction."""
    gaps: NDArray[np.bool_] = np.isnan(numbers)
    return gaps if gaps.ndim == 1 else np.asarray(gaps.any(1), dtype=np.bool_)


def _class_codes(cells: NDArray[Any], classes: Sequence[str]) -> NDArray[np.float64]:
    """Return the position of every class, -1 for an unknown one, NaN for a gap; ``1.0`` is class ``1``."""
    position = {name: float(code) for code, name in enumerate(classes)}

    def code(cell: str) -> float:
        if cell == "":
            return np.nan
        return position.get(cell, position.get(_whole(cell), -1.0))

    codes = {cell: code(cell) for cell in set(cells.tolist())}
    return np.array([codes[cell] for cell in cells.tolist()], dtype=np.float64)


def _whole(cell: str) -> str:
    try:
        number = float(cell)
    except ValueError:
        return cell
    return str(int(number)) if number.is_integer() else cell
