"""Who takes part in which round, and with which data."""

from chronofed.scenarios.base import Indices, Plan, Presence, Scenario, Stream, Visit
from chronofed.scenarios.membership import (
    NEVER,
    Available,
    Everyone,
    Fixed,
    Membership,
    OneShot,
    Schedule,
)
from chronofed.scenarios.partition import Prior, split, subset_size, two_level
from chronofed.scenarios.settings import (
    Calendar,
    Elsewhere,
    Fresh,
    ScenarioSettings,
    Subsets,
    Window,
)
from chronofed.scenarios.stream import Periods, RandomSubset, SlidingWindow, Stateless, Unknown

__all__ = [
    "NEVER",
    "Available",
    "Calendar",
    "Elsewhere",
    "Everyone",
    "Fixed",
    "Fresh",
    "Indices",
    "Membership",
    "OneShot",
    "Periods",
    "Plan",
    "Presence",
    "Prior",
    "RandomSubset",
    "Scenario",
    "ScenarioSettings",
    "Schedule",
    "SlidingWindow",
    "Stateless",
    "Stream",
    "Subsets",
    "Unknown",
    "Visit",
    "Window",
    "split",
    "subset_size",
    "two_level",
]
