"""Loading a specification: the TOML file, the overrides of a command line, and the place of its data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from chronofed.core import toml
from chronofed.core.errors import RunError, SpecError
from chronofed.core.paths import expand
from chronofed.core.spec_io import from_table
from chronofed.data import registry
from chronofed.data.client_source.rows import SourceRows
from chronofed.data.dataset import DataSettings
from chronofed.data.table import Table
from chronofed.runs.directory import RunDirectory
from chronofed.runs.spec import Experiment


def load(path: Path, overrides: Sequence[str] = (), data: Path | None = None) -> Experiment:
    """Load a specification file and find its data.

    Args:
        path: A TOML file.
        overrides: Changes such as ``train.lr=0.1``.
        data: Folder of data files.

    Returns:
        The experiment, with the path of a table made absolute.

    Raises:
        SpecError: If anything is wrong; the message names the place.
    """
    experiment = load_settings(path, overrides)
    try:
        return locate(experiment, path.parent, data)
    except SpecError as error:
        raise type(error)(f"{path}: {error}") from error


def load_run(directory: RunDirectory, data: Path | None = None) -> Experiment:
    """Load the specification of a run, which must be as it was written.

    Raises:
        RunError: If it was changed or is damaged.
        SpecError: If it cannot be served any more: its data or the user's own modules are gone.
    """
    spec = directory.spec_path
    try:
        changed = directory.changed_files([spec.name])
    except RunError:
        # Without digests, the checkpoint tells whether settings changed.
        changed = []
    try:
        toml.load(spec)
    except SpecError as error:
        msg = f"{error}; the file is damaged: restore it, or make the run again from its original spec"
        raise RunError(msg) from error
    if changed:
        raise RunError(
            f"{spec} was changed after the run had begun; undo the change to resume, or start over with it: "
            f"chronofed run {spec} -o NEW"
        )
    return load(spec, data=data)


def load_settings(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Load a specification file whose data may be on another machine."""
    return read_settings(load_table(path, overrides), path)


def load_table(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Load a specification file as a plain table, with the overrides of a command line."""
    table = toml.load(path)
    for override in overrides:
        _apply(table, override)
    return table


def read_settings(table: dict[str, Any], path: Path) -> Experiment:
    """Make settings of a table; messages name the file that it came from."""
    try:
        return from_table(table, Experiment)
    except SpecError as error:
        raise type(error)(f"{path}: {error}") from error
    except RecursionError:
        raise SpecError(f"{path}: settings are nested too deeply") from None


def _apply(table: dict[str, Any], override: str) -> None:
    """Apply ``a.b=value`` to a table; a value that is not TOML is a string."""
    place, equals, value = override.partition("=")
    *path, key = place.strip().split(".")
    if not equals or not key:
        msg = f"-s {override}: expected KEY=VALUE, such as -s train.lr=0.05"
        raise SpecError(msg)
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            msg = f"-s {override}: {part} is not a table"
            raise SpecError(msg)
    table[key] = toml_value(value.strip())


def toml_value(text: str) -> Any:
    """Read a value of TOML; a text that is none is a string."""
    try:
        return toml.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def locate(experiment: Experiment, beside: Path, data: Path | None) -> Experiment:
    """Make the paths of data and of the model to start from absolute; arguments as in :func:`locate_data`.

    Raises:
        SpecError: If one of them does not exist.
    """
    if experiment.start:
        start = _found("start", experiment.start, [beside], "a run directory or a safetensors file")
        experiment = msgspec.structs.replace(experiment, start=start)
    return locate_data(experiment, beside, data)


def locate_data(experiment: Experiment, beside: Path, data: Path | None) -> Experiment:
    """Make the paths of data files absolute.

    Args:
        experiment: The experiment.
        beside: Folder of the specification, searched first.
        data: Folder of data files, searched next.

    Raises:
        SpecError: If the file is in none of the folders.
    """
    folders = (beside, *registry.folders(data))
    located = _located("data", experiment.data, folders)
    experiment = msgspec.structs.replace(experiment, data=located)
    if experiment.server_data is None:
        return experiment
    located = _located("server_data", experiment.server_data, folders)
    return msgspec.structs.replace(experiment, server_data=located)


def _located(where: str, settings: DataSettings, folders: Sequence[Path]) -> DataSettings:
    """Return data settings with an absolute path."""
    if isinstance(settings, Table):
        path = _found(f"{where}.path", settings.path, folders)
        more = tuple(_found(f"{where}.more", name, folders) for name in settings.more)
        return msgspec.structs.replace(settings, path=path, more=more)
    if isinstance(settings, SourceRows):
        path = _found(f"{where}.source.path", settings.source.path, folders)
        source = msgspec.structs.replace(settings.source, path=path)
        return msgspec.structs.replace(settings, source=source)
    return settings


def _found(where: str, name: str, folders: Sequence[Path], wanted: str = "") -> str:
    try:
        given = expand(name)
        for folder in folders:
            if (folder / given).exists():
                return str((folder / given).resolve())
    # A name that is too long, a null character.
    except (OSError, ValueError) as error:
        raise SpecError(f"{where}: {name!r} cannot be a path: {error}") from error
    searched = ", ".join(map(str, folders))
    advice = f"name {wanted}" if wanted else "give its folder with --data"
    raise SpecError(f"{where}: no file {given} in {searched}; {advice}")
