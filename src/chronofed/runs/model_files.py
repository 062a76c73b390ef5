"""The model that a finished run leaves in ``model/``, ready for use.

=====================  =========================================================================
``model.json``         the description (:class:`~chronofed.models.description.ModelDescription`)
``model.safetensors``  weights and buffers, named as the torch module names them
``personal/``          weights of personal models, a file for each client that has one
``README.md``          the model card
=====================  =========================================================================

The folder is written beside its place and then moved there, so that a reader finds all of it or none. It needs
nothing else of the run directory: copy it to wherever the model is used.
"""

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from chronofed.core.atomic import flush_directory, make_folder, remove, write_atomic
from chronofed.core.errors import RunError, cannot_write
from chronofed.core.types import Vector
from chronofed.data.cells import MISSING
from chronofed.data.client_source.rows import SourceRows
from chronofed.data.encoding import encoded_names
from chronofed.data.forecast import Forecast
from chronofed.data.preparation import Preparation
from chronofed.data.table import Table
from chronofed.methods.clusters.table import followed
from chronofed.models.description import ColumnNames, DType, ModelDescription, PersonalModel
from chronofed.models.objective import TorchObjective
from chronofed.models.personal import PERSONAL, personal_path
from chronofed.models.trained import DESCRIPTION, WEIGHTS
from chronofed.models.weights import named_weights, write_weights
from chronofed.runs.built import BuiltRun
from chronofed.runs.checkpoint import load_latest
from chronofed.runs.directory import RunDirectory
from chronofed.runs.model_card import model_card
from chronofed.scenarios.periods import Periods
from chronofed.training.loop import Snapshot
from chronofed.training.own_priors import personal_models

FOLDER = "model"
CARD = "README.md"


def leave_model(directory: RunDirectory, built: BuiltRun, summary: Mapping[str, Any]) -> None:
    """Write the model of the latest checkpoint to ``model/``; an older one there is replaced.

    Args:
        directory: The run.
        built: The experiment.
        summary: The run's summary, for the model card.

    Raises:
        RunError: If there is no intact checkpoint.
        StorageError: If something cannot be written.
    """
    snapshot, complaints = load_latest(directory.checkpoints)
    if snapshot is None:
        raise RunError(
            "; ".join(complaints) or f"{directory.path}: no checkpoint to make a model of"
        )
    # The name of a temporary file, so that it is removed if this process is killed.
    folder = directory.path / f".{FOLDER}.{os.getpid()}.tmp"
    remove(folder)
    make_folder(folder)
    about = _write(folder, built, snapshot)
    write_atomic(folder / DESCRIPTION, about.to_json())
    write_atomic(folder / CARD, model_card(built, about, summary).encode())
    _move(folder, directory.path / FOLDER)


def remove_model(directory: RunDirectory, built: BuiltRun) -> None:
    """Remove the model of an earlier end, if the run deletes data: it may hold what must be forgotten."""
    if built.experiment.deletions:
        remove(directory.path / FOLDER)


def _write(folder: Path, built: BuiltRun, snapshot: Snapshot) -> ModelDescription:
    """Write all weights, and return the description of the model."""
    objective = built.task.objective()
    about = describe_model(built, snapshot)
    metadata = {"task": about.task, "spec": about.spec}
    personal = []
    # One client state at a time: they may not all fit into memory.
    for client, params, buffers in _personal(built, snapshot):
        make_folder(folder / PERSONAL)
        file = personal_path(folder, client)
        found = _write_weights(file, objective, params, buffers, {**metadata, "client": client})
        personal.append(PersonalModel(client, found))
    found = _write_weights(folder / WEIGHTS, objective, snapshot.params, snapshot.buffers, metadata)
    return msgspec.structs.replace(about, digest=found, personal=tuple(personal))


def _write_weights(
    path: Path,
    objective: TorchObjective,
    params: Vector,
    buffers: Vector,
    metadata: Mapping[str, str],
) -> str:
    objective.flat.bind(params.to(objective.device))
    objective.buffers = buffers.to(objective.device)
    return write_weights(path, named_weights(objective.flat.module), metadata)


def _personal(built: BuiltRun, snapshot: Snapshot) -> Iterator[tuple[str, Vector, Vector]]:
    """Yield name, parameters and buffers of every client's own model, or of the one that it follows."""
    names, several = _clients(built), followed(snapshot.server)
    parts = built.experiment.method, built.scenario, built.task, snapshot
    for client, params in personal_models(*parts):
        name = names[client] if client < len(names) else str(client)
        yield name, params, snapshot.buffers
    models, places, _ = several or (snapshot.params[None], {}, [])
    for client in sorted({*snapshot.client_states, *places}):
        known = client in snapshot.client_states
        state = snapshot.client_states[client].backbone_state if known else {}
        name = names[client] if client < len(names) else str(client)
        if "personal" in state:
            yield name, state["personal"], state.get("buffers", snapshot.buffers)
        elif client in places:
            yield name, models[places[client]], snapshot.buffers


def describe_model(built: BuiltRun, snapshot: Snapshot) -> ModelDescription:
    """Describe the model of a snapshot, without the digests of its files."""
    experiment, data = built.experiment, built.task.data
    preparation = _preparation(built)
    features = preparation.features if preparation else ()
    return ModelDescription(
        model=experiment.model,
        shape=data.shape,
        dtype=msgspec.convert(str(data.train.x.dtype).removeprefix("torch."), DType),
        classes=data.classes,
        scale=None if preparation is None else preparation.target,
        features=encoded_names(features, data.shape),
        preparation=preparation,
        columns=_columns(built),
        missing=experiment.data.missing if isinstance(experiment.data, Table) else MISSING,
        forecast=_forecast(built),
        clients=_clients(built),
        spec=experiment.fingerprint(),
        version=version("chronofed"),
        seed=experiment.seed,
        rounds=snapshot.round,
        last_period=_last_period(built, snapshot.round),
    )


def _preparation(built: BuiltRun) -> Preparation | None:
    """Return how columns become features: as fitted, or as the server's own rows are read."""
    settings, data = built.experiment.data, built.task.data
    if data.preparation is None and isinstance(settings, SourceRows):
        return Preparation(settings.source.all_features(), data.classes)
    return data.preparation


def _columns(built: BuiltRun) -> ColumnNames:
    settings = built.experiment.data
    if isinstance(settings, Table):
        return ColumnNames(settings.target, settings.client, settings.time)
    if isinstance(settings, SourceRows):
        return ColumnNames(settings.source.target, "", settings.source.time)
    return ColumnNames()


def _forecast(built: BuiltRun) -> Forecast | None:
    """Return the earlier rows that the model predicts from, if it does."""
    data = built.experiment.data
    if not isinstance(data, Table) or not (data.lags or data.horizon):
        return None
    columns = data.lagged if data.lags else ()
    return Forecast(data.lags, columns, data.horizon, data.date_format, data.time_zone)


def _clients(built: BuiltRun) -> tuple[str, ...]:
    """Return the names of the clients; empty if they are only numbered, or remote."""
    origin = built.task.data.origin
    named = isinstance(built.experiment.scenario, Periods)
    return origin.clients if origin is not None and named else ()


def _last_period(built: BuiltRun, rounds: int) -> str:
    """Name the latest period that the model was trained on; empty if rounds are not periods."""
    origin, scenario = built.task.data.origin, built.experiment.scenario
    if origin is None or not isinstance(scenario, Periods) or rounds == 0:
        return ""
    last = (rounds - 1) // scenario.rounds_per_period
    return origin.periods[min(last, len(origin.periods) - 1)]


def _move(folder: Path, place: Path) -> None:
    """Move a complete folder to its place; what was there before is removed afterwards."""
    old = folder.with_suffix(".old.tmp")
    try:
        if place.exists():
            place.rename(old)
        folder.rename(place)
        flush_directory(place.parent)
    except OSError as error:
        raise cannot_write(place, error) from error
    remove(old)
