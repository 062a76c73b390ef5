"""Clients' own models from a head that gives each the prior of its data."""

from collections.abc import Iterator

import torch

from chronofed.core.types import Vector
from chronofed.methods.method import Method
from chronofed.models.supervised import SupervisedTask
from chronofed.scenarios.base import Scenario
from chronofed.training.loop import Snapshot


def personal_models(
    method: Method, scenario: Scenario, task: SupervisedTask, snapshot: Snapshot
) -> Iterator[tuple[int, Vector]]:
    """Yield the own model of every client of the last round; nothing if the head has none.

    Where clients are elsewhere, they make these models themselves.
    """
    if method.head is None or scenario.remote or not snapshot.round or not scenario.persistent:
        return
    classes = len(task.data.classes)
    for client, visit in sorted(scenario.at(snapshot.round - 1).visits.items()):
        counts = torch.bincount(task.samples(visit.indices).y, minlength=classes)
        params = method.head.personalised(snapshot.server, counts)
        if params is None:
            return
        yield client, params
