"""The identity of a run: digests of its data, its settings and the user's own modules, and the version."""

import dataclasses
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from chronofed.core.errors import RunError
from chronofed.core.safetensors_io import numbers
from chronofed.core.spec_io import to_table
from chronofed.data.dataset import Dataset
from chronofed.runs.spec import NO_RESULT, Experiment

MODULE = "module "
"""Start of the key of a user's own module."""
_OWN = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
_WORDS = {
    "data": "the data",
    "start": "the model it starts from",
    "server_data": "the samples of the server",
    "settings": "the settings in spec.toml",
}


class ChangedError(RunError):
    """A run that was begun with something else, and is left as it is."""


def identify(
    experiment: Experiment, data: str, start: str = "", server: str = ""
) -> dict[str, str]:
    """Return everything that must not change between two parts of a run.

    Args:
        experiment: The settings.
        data: The digest of the data.
        start: The digest of the model that it starts from, if there is one.
        server: The digest of the server's own samples, if there are any.

    Returns:
        ``data``, ``start``, ``server_data``, ``settings``, ``version`` of chronofed, and the digest of the file
        of every module that the settings name as ``module:Class``.
    """
    own = {f"{MODULE}{name}": _file_digest(name) for name in sorted(set(_modules(experiment)))}
    return {
        "data": data,
        **({"start": start} if start else {}),
        **({"server_data": server} if server else {}),
        "settings": experiment.fingerprint(),
        "version": version("chronofed"),
        **own,
    }


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say in words what changed; empty if nothing did."""
    differing = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return ", ".join(_words(key, before, now) for key in differing)


def digest_data(data: Dataset) -> str:
    """Hash every sample, label and name of a data set."""
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(data):
        digest.update(part)
    return digest.hexdigest()


def _words(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    if key == "version":
        return f"chronofed (was {before.get(key)}, is {now.get(key)})"
    return _WORDS.get(key, key.replace(MODULE, "your module "))


def _modules(experiment: Experiment) -> Iterator[str]:
    """Yield the modules that the settings name, but for those that do not decide the result."""
    table = {key: value for key, value in to_table(experiment).items() if key not in NO_RESULT}
    for text in _texts(table):
        named = _OWN.fullmatch(text)
        if named and not named[1].startswith("chronofed."):
            yield named[1]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _file_digest(module: str) -> str:
    """Hash the file of a module; one without a file, such as a program typed into Python, is not followed."""
    known = sys.modules.get(module)
    file = getattr(known, "__file__", None) if known else _found(module)
    if file is None or not Path(file).is_file():
        return ""
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()


def _found(module: str) -> str | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        # A text that only looks like a module.
        return None
    return spec.origin if spec else None


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    """Yield the content of nested data classes, each part after its type and shape."""
    if isinstance(value, Tensor | np.ndarray):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield numbers(value) if isinstance(value, Tensor) else np.ascontiguousarray(value).data
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name.encode()
            yield from _parts(getattr(value, field.name))
    else:
        yield json.dumps(value, default=str).encode()
