"""The settings of an experiment: everything that decides its result."""

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from chronofed.clients.deletion import Deletion
from chronofed.core import toml
from chronofed.core.bounds import MOST_WORKERS
from chronofed.core.config import Config, Count, Natural, Positive
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import to_table
from chronofed.data.dataset import Dataset, DataSettings
from chronofed.data.settings import Images
from chronofed.engines.auto import AUTO, check_name
from chronofed.engines.cluster import Cluster
from chronofed.methods.local import Train
from chronofed.methods.method import Method
from chronofed.models.augment import crop_and_flip
from chronofed.models.classification import Classification
from chronofed.models.losses import Loss
from chronofed.models.regression import Regression
from chronofed.models.supervised import SupervisedTask
from chronofed.models.zoo import Mlp, ModelSettings
from chronofed.scenarios.settings import ScenarioSettings
from chronofed.scenarios.subsets import Subsets
from chronofed.training.evaluate import Evaluate
from chronofed.training.stopping import Stop

FOREVER = sys.maxsize
"""Number of rounds of a run without end."""
NO_RESULT = (
    "name",
    "card",
    "checkpoint",
    "engine",
    "workers",
    "state_cache_mb",
    "device",
    "track",
    "cluster",
)
"""Settings that do not decide the result."""
UNSET: Mapping[str, object] = {"loss": None, "head": None, "keep_logits": 0.0}
"""Settings of a method that decide nothing at these values: runs from before they existed can be resumed."""
LONGEST_NAME = 120
"""Characters of an experiment's name in the name of its directory."""
Workers = Annotated[int, msgspec.Meta(ge=1, le=MOST_WORKERS)]


class Checkpoint(Config):
    """Settings of checkpoints.

    Attributes:
        every: Rounds between checkpoints.
        keep: Number of latest checkpoints to keep; if the latest is damaged, the one before it is used.
    """

    every: Count = 10
    keep: Count = 2


class Card(Config):
    """Words of yours in the model card, ``model/README.md`` of a run.

    Attributes:
        licence: Licence of the model, such as ``CC-BY-4.0``.
        intended_use: What the model is for.
        limits: What it must not be used for, and where it fails.
    """

    licence: str = ""
    intended_use: str = ""
    limits: str = ""


class Experiment(Config):
    """An experiment: data, model, scenario, method, and how long.

    Attributes:
        name: A name for people.
        seed: Root of all randomness.
        rounds: Number of rounds; by default as many as the scenario has. ``forever``: until it is stopped.
        data: The data set.
        server_data: Source of unlabelled samples on the server, for a backbone that refines the model on them.
            Only the inputs of its training samples are used; those that are also evaluated on are left out.
        model: The model.
        loss: The loss of a sample; by default ``cross-entropy`` for classes and ``squared`` for numbers. Or
            your own, as ``package.module:Class`` of a :class:`~chronofed.Loss`.
        scenario: Who takes part when, with which data.
        method: How to learn.
        train: How clients train.
        evaluate: When and on what the model is evaluated.
        checkpoint: How often the state is saved.
        card: Words of yours about the model.
        stop: When to end before the last round; by default never.
        deletions: Data to be forgotten from some round on.
        start: Model to start from instead of a random one: a run directory, a ``model`` folder of one, or a
            safetensors file; a relative path starts at the folder of the specification. Parameters and buffers
            are taken over, and with a table the preparation of its columns; what clients kept is not.
        engine: Engine that trains the clients; results do not depend on it, but ``batched`` rounds differently.
            ``auto``: the fastest for the model, the cohort and the machine. ``serial``: one client after
            another. ``threads`` and ``processes``: several in parallel. ``batched``: all clients of a round as
            one program, for linear models and MLPs. ``ray``: on several machines (``cluster``). Or your own,
            as ``package.module:Class`` (:mod:`chronofed.engines.base`).
        workers: Clients to train in parallel; by default as many as there are cores.
        state_cache_mb: Megabytes of what clients keep that stay in memory; the rest waits on disk. By default
            all stays in memory.
        cluster: The machines of an engine that uses several, which is ``ray``.
        partial_sums: Number of parts in which the uploads of a round are added up: every client belongs to one,
            by its number; the clients of a part are added first, on ``ray`` by the workers, and then the parts.
            So less travels, and rounding differs a little from the default, in which one client is added after
            another. The result does not depend on the engine either way.
        device: Where models are, as torch names it, such as ``cuda``.
        track: Tracker that logs every evaluation: ``tensorboard``, or your own adapter as
            ``package.module:factory`` (:mod:`chronofed.runs.tracking`).
    """

    name: str = "run"
    seed: Natural = 0
    rounds: Count | Literal["forever"] | None = None
    data: DataSettings = Images()
    server_data: DataSettings | None = None
    model: ModelSettings = Mlp()
    loss: Loss | None = None
    scenario: ScenarioSettings = Subsets()
    method: Method = Method()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    card: Card = Card()
    deletions: tuple[Deletion, ...] = ()
    start: str | None = None
    engine: str = AUTO
    workers: Workers | None = None
    state_cache_mb: Positive | None = None
    cluster: Cluster | None = None
    partial_sums: Count | None = None
    device: str = "cpu"
    track: str | None = None
    stop: Stop | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name(self.engine)

    def task(self, dataset: Dataset) -> SupervisedTask:
        """Make the task of learning from a data set: the experiment's, or a client's own.

        Without classes it is a regression.
        """
        augment = getattr(self.data, "augment", "none")
        change = crop_and_flip if augment == "crop-flip" else None
        kind = Classification if dataset.classes else Regression
        return kind(dataset, self.model, change, self.device, self.loss)

    @property
    def state_cache_bytes(self) -> int | None:
        """Bytes of what clients keep that stay in memory."""
        return None if self.state_cache_mb is None else int(self.state_cache_mb * 2**20)

    def resolved(self) -> str:
        """Return the whole specification as TOML, with all defaults."""
        return toml.dumps(to_table(self))

    def fingerprint(self) -> str:
        """Hash everything that decides the result: not the name, the checkpoints or the engine."""
        content = to_table(self)
        for key in NO_RESULT:
            content.pop(key, None)
        if self.partial_sums is None:
            # As before there was this setting.
            del content["partial_sums"]
        text = json.dumps({**content, "method": _without_unset(content["method"])}, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def _without_unset(table: Any) -> Any:
    """Leave out what is not set, at any depth."""
    if not isinstance(table, dict):
        return table
    left = {n: value for n, value in table.items() if n not in UNSET or value != UNSET[n]}
    return {name: _without_unset(value) for name, value in left.items()}


def directory_name(experiment: Experiment) -> str:
    """Join name, fingerprint and seed: equal experiments get the same directory."""
    safe = "".join(
        c if c.isalnum() or c in "-_.=," else "-" for c in experiment.name.replace(", ", ",")
    )
    return f"{safe[:LONGEST_NAME]}-{experiment.fingerprint()}-s{experiment.seed}"


def on_engine(
    experiment: Experiment, engine: str | None, workers: int | None, address: str | None = None
) -> Experiment:
    """Replace the engine, its workers and its cluster's address in an experiment, where they are given.

    Raises:
        SpecError: If the number of workers is out of range.
    """
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        bound = "a number >= 1" if workers < 1 else f"at most {MOST_WORKERS}"
        raise SpecError(f"--workers: expected {bound}, not {workers}")
    return msgspec.structs.replace(
        experiment,
        engine=experiment.engine if engine is None else engine,
        workers=experiment.workers if workers is None else workers,
        cluster=experiment.cluster if address is None else _at(experiment.cluster, address),
    )


def _at(cluster: Cluster | None, address: str) -> Cluster:
    return msgspec.structs.replace(cluster or Cluster(), address=address)
