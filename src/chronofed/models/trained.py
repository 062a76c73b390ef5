"""A trained model: a torch module that knows its classes, its features and how to prepare rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chronofed.core.errors import ChronofedError, DataError, RunError
from chronofed.core.seeds import global_torch_seed
from chronofed.core.user_code import in_one_line
from chronofed.data.columns import Columns
from chronofed.data.encoding import encode_features
from chronofed.data.forecast import Inputs
from chronofed.data.in_memory import to_columns
from chronofed.data.preparation import Feature
from chronofed.models.description import ModelDescription, read_description
from chronofed.models.personal import personal_path
from chronofed.models.weights import read_weights

DESCRIPTION = "model.json"
WEIGHTS = "model.safetensors"
BATCH = 500
"""Samples of one pass."""
LARGEST_DESCRIPTION = 2**26
"""Bytes of ``model.json`` that are read."""
IMAGES = (Feature("x"),)
"""Features of data without a preparation: the array ``x``."""


class TrainedModel(nn.Module):
    """A trained model in evaluation mode.

    As a module, it maps encoded samples to logits ``(b, classes)``, or to scaled numbers ``(b, 1)``.
    :meth:`predict` takes rows as they come.

    Attributes:
        network: The module that was trained.
        about: The description of the model.
        folder: Its folder.
    """

    def __init__(self, network: nn.Module, about: ModelDescription, folder: Path) -> None:
        super().__init__()
        self.network = network
        self.about = about
        self.folder = folder
        self.eval()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of the outputs; empty if the model predicts a number."""
        return self.about.classes

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the inputs in their order; empty for images and windows."""
        return self.about.features

    @property
    def clients(self) -> tuple[str, ...]:
        """Clients with a personal model."""
        return tuple(one.client for one in self.about.personal)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(b, classes)`` of encoded samples, or scaled numbers ``(b, 1)``."""
        out: Tensor = self.network(x)
        return out

    def prepare(self, rows: Any) -> Tensor:
        """Encode rows as they were encoded for training.

        Args:
            rows: A file, a data frame, a table of columns, or a list of rows (:mod:`chronofed.data.in_memory`).

        Returns:
            The samples, ``(n, ...)``; NaN for a row that lies less than the horizon after its client's first.

        Raises:
            DataError: If a column is missing, or a cell does not fit.
        """
        found = self.inputs(self.read(rows))
        return found.spread(self.encode(found.columns))

    def read(self, rows: Any, query: str = "") -> Columns:
        """Return the columns of rows, as :meth:`prepare` takes them, or of a database and a query."""
        client = self.about.columns.client
        return to_columns(rows, self.about.missing, [client] if client else [], query)

    def inputs(self, columns: Columns, also: Sequence[str] = ()) -> Inputs:
        """Find the features of every row, where the model uses earlier rows; ``also`` must be there too."""
        about = self.about
        features = IMAGES if about.preparation is None else about.preparation.features
        names = [feature.name for feature in features]
        if about.forecast is not None:
            keys = (about.columns.client, about.columns.time)
            return about.forecast.inputs(columns, names, *keys, also)
        count = columns.rows([*names, *also])
        return Inputs(columns, np.arange(count), count)

    def encode(self, columns: Columns, place: NDArray[np.int64] | None = None) -> Tensor:
        """Encode some rows of a table, by default all; otherwise as :meth:`prepare`."""
        preparation = self.about.preparation
        features = IMAGES if preparation is None else preparation.features
        count = columns.rows([feature.name for feature in features])
        place = np.arange(count) if place is None else place
        x = torch.from_numpy(encode_features(columns, features, place))
        self._check(x, str(columns.path))
        return x

    def predict(self, rows: Any) -> Tensor:
        """Predict from rows, as :meth:`prepare` takes them, or from samples that are encoded already.

        Returns:
            Probabilities ``(n, classes)``, or numbers in the target's own units ``(n,)``; NaN for a row that
            lies less than the horizon after its client's first.
        """
        if not isinstance(rows, Tensor | np.ndarray):
            found = self.inputs(self.read(rows))
            return found.spread(self.predict(self.encode(found.columns)))
        x = torch.as_tensor(rows)
        self._check(x, "samples")
        with torch.no_grad():
            return self.in_units(torch.cat([self(part) for part in torch.split(x, BATCH)]))

    def in_units(self, outputs: Tensor) -> Tensor:
        """Turn outputs of the module into probabilities, or into numbers in the target's units."""
        if self.classes:
            return outputs.softmax(-1)
        scale = self.about.scale
        numbers = outputs.reshape(len(outputs)).double()
        return numbers if scale is None else numbers * scale.deviation + scale.mean

    def personal(self, client: str) -> "TrainedModel":
        """Return the personal model of a client.

        Raises:
            DataError: If the client has none.
            RunError: If its file is damaged.
        """
        digests = {one.client: one.digest for one in self.about.personal}
        if client not in digests:
            known = ", ".join(list(digests)[:5]) or "nobody has one"
            raise DataError(f"{self.folder}: no personal model of {client!r:.80}; {known}")
        path = personal_path(self.folder, client)
        return _filled(self.about, self.folder, path, digests[client])

    def _check(self, x: Tensor, where: str) -> None:
        """Refuse samples of another shape, or of another type where the model would not notice."""
        wanted, dtype = self.about.shape, self.about.dtype
        if tuple(x.shape[1:]) != wanted:
            raise DataError(f"{where}: samples of shape {tuple(x.shape[1:])}, not {wanted}")
        if (x.dtype == torch.uint8) != (dtype == "uint8"):
            raise DataError(f"{where}: numbers of {x.dtype}, where the model needs {dtype}")


def load_model(run: str | Path, *, trust_code: bool = False) -> TrainedModel:
    """Load the model that a finished run left.

    Args:
        run: The run's directory, or its folder ``model``, which may have been moved anywhere.
        trust_code: Allow the model to name code of yours that builds it, which is then imported and called.

    Returns:
        The model, in evaluation mode.

    Raises:
        RunError: If there is none, or its files are damaged.
    """
    folder = Path(run)
    if not (folder / DESCRIPTION).is_file() and (folder / "model").is_dir():
        folder = folder / "model"
    about = read_description(_description(folder), str(folder / DESCRIPTION), trust_code)
    return _filled(about, folder, folder / WEIGHTS, about.digest)


def _description(folder: Path) -> bytes:
    path = folder / DESCRIPTION
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_DESCRIPTION + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(_nothing(folder)) from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(content) > LARGEST_DESCRIPTION:
        raise RunError(f"{path} is damaged (more than {LARGEST_DESCRIPTION} bytes)")
    return content


def _nothing(folder: Path) -> str:
    if (folder / "spec.toml").is_file():
        return (
            f"{folder} has no model yet: a run leaves it at its end; see: chronofed resume {folder}"
        )
    return f"{folder} is neither a run directory nor the model of one (it has no {DESCRIPTION})"


def _filled(about: ModelDescription, folder: Path, path: Path, digest: str) -> TrainedModel:
    """Build the module and fill it with weights; a module of ours takes no memory before they are checked."""
    try:
        # Code of the user may compute with its initial values.
        device = "cpu" if about.own_code else "meta"
        with global_torch_seed(0, "unused initial values"), torch.device(device):
            network = about.model.build(about.shape, about.outputs)
    except ChronofedError as error:
        raise RunError(f"{folder / DESCRIPTION}: {error}") from error
    except (RuntimeError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise RunError(f"{folder / DESCRIPTION}: cannot be built: {in_one_line(error)}") from error
    read_weights(path, network, digest)
    return TrainedModel(network, about, folder)
