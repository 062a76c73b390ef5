"""The description of a trained model: all that is needed to use it, as plain data in ``model.json``."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from chronofed.core.config import Config, Natural
from chronofed.core.errors import RunError, SpecError
from chronofed.core.limits import read_json
from chronofed.core.spec_io import from_table, to_table
from chronofed.data.cells import MISSING
from chronofed.data.forecast import Forecast
from chronofed.data.preparation import Preparation, Target
from chronofed.models.zoo import ModelSettings

DType = Literal["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
"""Type of a number, by torch's name."""
FORMAT = 1
"""Version of the format of ``model.json``."""


class ColumnNames(Config):
    """Columns of a table that are not features; empty where there is none.

    Attributes:
        target: Column that the model predicts.
        client: Column with the client of a row.
        time: Column with the time of a row.
    """

    target: str = ""
    client: str = ""
    time: str = ""


class PersonalModel(Config):
    """The model of one client.

    Attributes:
        client: Name of the client.
        digest: Digest of its file.
    """

    client: str
    digest: str


class ModelDescription(Config, kw_only=True):
    """A trained model without its weights.

    Attributes:
        model: Settings that build the module.
        shape: Shape of one sample.
        dtype: Type of its numbers: bytes of images are scaled by the model itself.
        classes: Names of the classes, in the order of the outputs; none for a number.
        scale: For a number: its scale.
        features: Names of the inputs in their order; none for images and windows.
        preparation: How the columns of a table become inputs.
        columns: Other columns of the table.
        missing: Texts that stand for a missing value.
        forecast: The earlier rows that it predicts from; None if a row is predicted from itself.
        clients: Names of the clients that it was trained with.
        personal: Clients with a model of their own.
        digest: Digest of ``model.safetensors``.
        spec: Fingerprint of the specification.
        version: Version of chronofed that trained it.
        seed: Root of the run's randomness.
        rounds: Rounds that it was trained for.
        last_period: Latest period that it was trained on; empty if the data have none.
        format: Version of this format.
    """

    model: ModelSettings
    shape: tuple[Natural, ...]
    dtype: DType = "float32"
    classes: tuple[str, ...] = ()
    scale: Target | None = None
    features: tuple[str, ...] = ()
    preparation: Preparation | None = None
    columns: ColumnNames = ColumnNames()
    missing: tuple[str, ...] = MISSING
    forecast: Forecast | None = None
    clients: tuple[str, ...] = ()
    personal: tuple[PersonalModel, ...] = ()
    digest: str = ""
    spec: str = ""
    version: str = ""
    seed: Natural = 0
    rounds: Natural = 0
    last_period: str = ""
    format: Natural = FORMAT

    @property
    def task(self) -> Literal["classification", "regression"]:
        """The task, as the data define it."""
        return "classification" if self.classes else "regression"

    @property
    def outputs(self) -> int:
        """Number of outputs of the module."""
        return max(1, len(self.classes))

    @property
    def own_code(self) -> str:
        """Code of the user that builds the module, as ``package.module:name``; empty if it is ours."""
        kind, factory = (str(to_table(self.model).get(key, "")) for key in ("kind", "factory"))
        return kind if ":" in kind else factory

    def to_json(self) -> bytes:
        """Write it as JSON, with the task and a digest of itself."""
        table = {"task": self.task, **to_table(self)}
        return json.dumps(table | {"self": _own_digest(table)}, indent=1).encode() + b"\n"


def read_description(content: bytes, where: str, trust_code: bool = False) -> ModelDescription:
    """Read what :meth:`ModelDescription.to_json` wrote.

    Args:
        content: The file.
        where: Its name, for messages.
        trust_code: Allow it to name code of the user, which is imported.

    Raises:
        RunError: If it is damaged, of another version, or names code without permission.
    """
    table = _checked(content, where)
    code = _named_code(table.get("model"))
    if code and not trust_code:
        raise RunError(
            f"{where}: the model is built by code of your own, {code}; if you trust where it comes from: "
            "load_model(..., trust_code=True), or --trust-code"
        )
    try:
        return from_table(table, ModelDescription)
    except SpecError as error:
        raise RunError(f"{where}: {error}") from error


def _checked(content: bytes, where: str) -> dict[str, Any]:
    """Return the table of a description whose digest is right."""
    try:
        table = read_json(content.decode())
        if not isinstance(table, dict):
            raise ValueError("it is not a table")
        if table.get("format") != FORMAT:
            raise RunError(_other_format(where, table.get("format")))
        if table.pop("self", None) != _own_digest(table):
            raise ValueError("it does not match its own digest")
    except (ValueError, RecursionError) as error:
        msg = f"{where} was changed or is damaged ({' '.join(str(error).split())}); restore it from a copy"
        raise RunError(msg) from None
    table.pop("task", None)
    return table


def _named_code(model: object) -> str:
    """Return the code that the settings of a model name."""
    if not isinstance(model, Mapping):
        return ""
    kind = str(model.get("kind", ""))
    return kind if ":" in kind else str(model.get("factory", ""))


def _other_format(where: str, found: object) -> str:
    return (
        f"{where} has format {found!r:.40}, and this version of chronofed reads {FORMAT}; use the version of "
        "chronofed that it names"
    )


def _own_digest(table: Mapping[str, Any]) -> str:
    return digest(json.dumps(table, sort_keys=True).encode())


def digest(content: bytes) -> str:
    """Hash some bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
