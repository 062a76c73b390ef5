"""The comparison of a run with its baselines, computed after training."""

from collections.abc import Sequence
from typing import Any

import msgspec

from chronofed.core.user_code import user_frames_only
from chronofed.models.zoo import Linear, Mlp
from chronofed.runs.built import BuiltRun
from chronofed.runs.directory import RunDirectory
from chronofed.training.baselines import (
    SIMPLE,
    TRAINED,
    BaselineName,
    Surroundings,
    samples_trained,
    score_baselines,
)
from chronofed.training.references import compare, headline
from chronofed.training.summary import Measures

MOST_PARAMETERS = 100_000
"""Parameters of a model up to which ``auto`` trains baselines, ..."""
MOST_SAMPLES = 200_000
"""... and samples that each may pass through it."""


def compare_with_baselines(
    directory: RunDirectory, built: BuiltRun, history: Sequence[Measures]
) -> dict[str, Any]:
    """Score the baselines of a run, write ``baselines.json``, and return their part of the summary."""
    settings, upcoming = built.experiment, built.upcoming
    if upcoming is None or settings.evaluate.baselines == "off" or not history:
        return {}
    # A client may be slow; a baseline is not.
    train = msgspec.structs.replace(settings.train, slow=0.0)
    around = Surroundings(built.task, built.scenario, upcoming, train, settings.seed)
    names, reason = choose_baselines(built, around)
    rounds = [int(line["round"]) for line in history]
    with user_frames_only():
        found = score_baselines(around, names, rounds)
    key = headline(built.task.data.classes)
    compared = compare(history, found, key, getattr(settings.data, "period", ""))
    if reason:
        compared["reason"] = reason
    directory.describe_baselines(
        {
            "measure": key,
            "rounds": rounds,
            "periods": [upcoming.name(around.period(round_)) for round_ in rounds],
            "rows": [len(upcoming.rows(around.period(round_), round_)) for round_ in rounds],
            "scores": {name: list(scores.scores) for name, scores in found.items()},
        }
    )
    return {"baselines": compared}


def choose_baselines(built: BuiltRun, around: Surroundings) -> tuple[Sequence[BaselineName], str]:
    """Choose the baselines; return them with the reason why some are left out."""
    asked = built.experiment.evaluate.baselines
    if asked == "all":
        return (*SIMPLE, *TRAINED), ""
    if asked == "simple":
        return SIMPLE, ""
    reason = _expensive(built, around)
    if not reason:
        return (*SIMPLE, *TRAINED), ""
    return (
        SIMPLE,
        f"no baselines that train, because {reason}; evaluate.baselines = 'all' adds them",
    )


def _expensive(built: BuiltRun, around: Surroundings) -> str:
    """Say why training baselines would take long; empty if it would not."""
    if not isinstance(built.task.model, Linear | Mlp):
        return "the model is neither linear nor an MLP"
    parameters = around.objective.flat.size
    if parameters > MOST_PARAMETERS:
        return f"the model has {parameters:,} parameters, more than {MOST_PARAMETERS:,}"
    samples = samples_trained(around, built.rounds)
    if samples > MOST_SAMPLES:
        return f"each would pass about {samples:,.0f} samples, more than {MOST_SAMPLES:,}"
    return ""
