"""Wall-clock time by phase, as plain data."""

import logging
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from chronofed.core.errors import RunError
from chronofed.reports.curve_tables import short
from chronofed.reports.groups import Group
from chronofed.reports.runs import RunView

logger = logging.getLogger(__name__)
PHASES = ("train", "memory", "head", "data", "aggregate", "probe", "evaluate", "write")
"""Phases in the order in which they are drawn; the rest of a run is ``other``."""


def phase_table(groups: Sequence[Group]) -> dict[str, Any]:
    """Tabulate the seconds of every experiment by phase, mean over its runs; only phases that occur."""
    spent = {place: _seconds(group) for place, group in enumerate(groups)}
    spent = {place: phases for place, phases in spent.items() if any(phases.values())}
    known = {phase for phases in spent.values() for phase, value in phases.items() if value > 0}
    phases = [phase for phase in (*PHASES, *sorted(known - {*PHASES})) if phase in known]
    return {
        "phases": phases,
        "rows": [
            {"group": place, "seconds": [short(found.get(phase, 0.0)) for phase in phases]}
            for place, found in spent.items()
        ],
    }


def _seconds(group: Group) -> dict[str, float]:
    """Average over runs; clients that train beside each other may spend more than the run took."""
    runs = [spent for run in group.runs if (spent := _seconds_of(run)) is not None]
    names = {name for run in runs for name in run} - {"total"}
    found = {name: fmean(run.get(name, 0.0) for run in runs) for name in names}
    total = fmean(run.get("total", 0.0) for run in runs) if runs else 0.0
    return found | {"other": max(0.0, total - sum(found.values()))}


def _seconds_of(run: RunView) -> dict[str, float] | None:
    """Return a run's seconds; ``None`` if their file is damaged, because no result depends on it."""
    try:
        return run.directory.seconds()
    except RunError as error:
        logger.warning("no time by phase of %s: %s", run.directory.path, error)
        return None
