"""The specification of an experiment: everything that decides its result."""

import hashlib
import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from chronofed.config import Config, Count, Natural, Positive
from chronofed.deletion import Deletion
from chronofed.engines.choice import Choice, EngineKind, choose
from chronofed.errors import DataError, SpecError
from chronofed.experiments import toml
from chronofed.experiments.reader import read, written
from chronofed.local import Train
from chronofed.loop import check, check_buffers
from chronofed.metrics.evaluation import Evaluate
from chronofed.protocol import Method
from chronofed.scenarios import Scenario
from chronofed.scenarios.settings import ScenarioSettings, Subsets
from chronofed.sources import Everything, Source
from chronofed.tasks import library
from chronofed.tasks.augment import crop_and_flip
from chronofed.tasks.classification import Classification
from chronofed.tasks.dataset import Dataset, DataSettings
from chronofed.tasks.models import Mlp, ModelSettings
from chronofed.tasks.table import Table

FOREVER = sys.maxsize
"""Number of rounds of a run without end."""


class Images(DataSettings, tag="images"):
    """A named image data set (see: chronofed data list).

    Attributes:
        name: Its name.
        augment: ``crop-flip``: random crops and flips of training images, as usual for CIFAR.
    """

    name: Literal["fashion-mnist-mini", "fashion-mnist", "cifar10", "cifar100"] = (
        "fashion-mnist-mini"
    )
    augment: Literal["none", "crop-flip"] = "none"

    def load(self, folder: Path | None, seed: int) -> Dataset:  # noqa: ARG002 - nothing is drawn
        """Read the files."""
        return library.load(self.name, folder)


class Rows(DataSettings, tag="source"):
    """Rows for testing, read as clients with data of their own read theirs; for the scenario ``elsewhere``.

    Attributes:
        source: Where they are, and how they become numbers; all of them are used, current or not.
    """

    source: Source

    def load(self, folder: Path | None, seed: int) -> Dataset:  # noqa: ARG002 - nothing is drawn
        """Read them; one stands for the clients' samples, to tell their shape."""
        held = msgspec.structs.replace(self.source, current=Everything()).now(0)
        if not len(held):
            why = "; ".join(held.notes) or "the file has none"
            raise DataError(f"{self.source.path}: no rows to test on: {why}")
        one, name = held.samples[torch.zeros(1, dtype=torch.int64)], Path(self.source.path).stem
        return Dataset(name, one, held.samples, self.source.classes, notes=held.notes)


class Checkpoint(Config):
    """How often the state is saved.

    Attributes:
        every: Rounds between checkpoints.
        keep: How many of the latest are kept; an older one serves where the latest is damaged.
    """

    every: Count = 10
    keep: Count = 2


class Experiment(Config):
    """An experiment: data, model, scenario, method, and how long.

    Attributes:
        name: A name for people.
        seed: Root of all randomness.
        rounds: Number of rounds; by default as many as the scenario has. ``forever``: until it is stopped.
        data: What to learn from.
        model: What to learn.
        scenario: Who takes part when, with which data.
        method: How to learn.
        train: How clients train.
        evaluate: When and on what the model is evaluated.
        checkpoint: How often the state is saved.
        deletions: Data to be forgotten from some round on.
        engine: Where clients run; results do not depend on it, but ``batched`` rounds differently. ``auto``:
            what is fastest for the model, the cohort and the machine. ``serial``: one after the other.
            ``threads`` and ``processes``: several side by side. ``batched``: all clients of a round as one
            program, for linear models and MLPs.
        workers: Clients that train side by side; by default as many as there are cores.
        client_memory: Megabytes of what clients keep that stay in memory; the rest waits on disk. By default
            all stays in memory.
        device: Where models are, as torch names it, such as ``cuda``.
        track: Who else is told of every evaluation: ``tensorboard``, or an adapter of one's own as
            ``package.module:factory`` (:mod:`chronofed.experiments.tracking`).
    """

    name: str = "run"
    seed: Natural = 0
    rounds: Count | Literal["forever"] | None = None
    data: DataSettings = Images()
    model: ModelSettings = Mlp()
    scenario: ScenarioSettings = Subsets()
    method: Method = Method()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    deletions: tuple[Deletion, ...] = ()
    engine: EngineKind = "auto"
    workers: Count | None = None
    client_memory: Positive | None = None
    device: str = "cpu"
    track: str | None = None

    def build(self, folder: Path | None = None) -> tuple[Classification, Scenario, int]:
        """Load the data and make task, scenario and number of rounds; refuse what cannot work.

        Raises:
            SpecError: If the parts do not fit together.
        """
        dataset = self.data.load(folder, self.seed)
        if not len(dataset.test):
            msg = "data: no test samples; hold some rows out (data.holdout)"
            raise SpecError(msg)
        task = self.task(dataset)
        scenario = self.scenario.on(dataset, self.seed)
        rounds = self._rounds(scenario)
        check(self.method, scenario, rounds)
        self.evaluate.check(scenario)
        if scenario.elsewhere and any(deletion.rows for deletion in self.deletions):
            msg = "deletions.rows: clients are elsewhere, so are their rows; see: chronofed client forget"
            raise SpecError(msg)
        one = task.samples(np.zeros(1, dtype=np.int64))
        params, buffers = task.initial(self.seed)
        check_buffers(self.method, buffers)
        self.method.memory.check(task.objective(), params, one)
        return task, scenario, rounds

    def task(self, dataset: Dataset) -> Classification:
        """What is learned on a data set, be it the specification's or a client's own."""
        augment = getattr(self.data, "augment", "none")
        change = crop_and_flip if augment == "crop-flip" else None
        return Classification(dataset, self.model, change, self.device)

    def _rounds(self, scenario: Scenario) -> int:
        if self.rounds == "forever":
            if scenario.rounds is not None:
                msg = f"rounds: forever, but this scenario ends after {scenario.rounds} rounds"
                raise SpecError(msg)
            return FOREVER
        rounds = self.rounds if self.rounds is not None else scenario.rounds
        if rounds is None:
            msg = "rounds: missing (this scenario has no end of its own)"
            raise SpecError(msg)
        return rounds

    def choose(self, task: Classification, scenario: Scenario) -> Choice:
        """Which engine of this machine to use.

        Raises:
            IncompatibleError: If the one that was asked for cannot do it, or none can.
        """
        scenario.check_here()
        cohort = scenario.clients if scenario.cohort is None else scenario.cohort
        return choose(self.engine, self.workers, task, self.method, cohort)

    @property
    def budget(self) -> int | None:
        """Bytes of what clients keep that stay in memory."""
        return None if self.client_memory is None else int(self.client_memory * 2**20)

    def resolved(self) -> str:
        """The whole specification with all defaults, as TOML."""
        return toml.dumps(written(self))

    def fingerprint(self) -> str:
        """Equal for experiments that have the same results: names, checkpoints and engines do not count."""
        content = written(self)
        for key in ("name", "checkpoint", "engine", "workers", "client_memory", "device", "track"):
            content.pop(key, None)
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def load(path: Path, overrides: Sequence[str] = (), data: Path | None = None) -> Experiment:
    """Read a specification file, and find its data.

    Args:
        path: A TOML file.
        overrides: Changes such as ``train.lr=0.1``.
        data: Folder of data files.

    Returns:
        The experiment, with the path of a table made absolute.

    Raises:
        SpecError: If anything is wrong, with the place.
    """
    experiment = load_settings(path, overrides)
    try:
        return with_path(experiment, path.parent, data)
    except SpecError as error:
        raise type(error)(f"{path}: {error}") from error


def load_settings(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read a specification file whose data may be on another machine."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: {(error.strerror or str(error)).lower()}"
        raise SpecError(msg) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{path}: not valid TOML: {error}"
        raise SpecError(msg) from error
    for override in overrides:
        _override(table, override)
    try:
        return read(table, Experiment)
    except SpecError as error:
        raise type(error)(f"{path}: {error}") from error


def _override(table: dict[str, Any], text: str) -> None:
    """Apply ``a.b=value`` to a table; the value is TOML, or else taken as text."""
    place, equals, value = text.partition("=")
    *path, key = place.strip().split(".")
    if not equals or not key:
        msg = f"-s {text}: expected KEY=VALUE, such as -s train.lr=0.05"
        raise SpecError(msg)
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            msg = f"-s {text}: {part} is not a table"
            raise SpecError(msg)
    table[key] = _toml_value(value.strip())


def _toml_value(text: str) -> Any:  # noqa: ANN401
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def with_path(experiment: Experiment, beside: Path, data: Path | None) -> Experiment:
    """Make the path of a file of data absolute: beside the specification, or in a data folder."""
    folders = (beside, *library.folders(data))
    settings = experiment.data
    if isinstance(settings, Table):
        path = _found("data.path", settings.path, folders)
        settings = msgspec.structs.replace(settings, path=path)
    elif isinstance(settings, Rows):
        path = _found("data.source.path", settings.source.path, folders)
        source = msgspec.structs.replace(settings.source, path=path)
        settings = msgspec.structs.replace(settings, source=source)
    return msgspec.structs.replace(experiment, data=settings)


def _found(where: str, name: str, folders: Sequence[Path]) -> str:
    given = Path(name).expanduser()
    for folder in folders:
        if (folder / given).exists():
            return str((folder / given).resolve())
    looked = ", ".join(map(str, folders))
    raise SpecError(f"{where}: no file {given} in {looked}; give its folder with --data")


def on_engine(experiment: Experiment, engine: EngineKind | None, workers: int | None) -> Experiment:
    """The same experiment on another engine, or with another number of workers, where these are given.

    Raises:
        SpecError: If the number of workers is below 1.
    """
    if workers is not None and workers < 1:
        raise SpecError(f"--workers: expected a number >= 1, not {workers}")
    return msgspec.structs.replace(
        experiment,
        engine=engine or experiment.engine,
        workers=workers or experiment.workers,
    )
