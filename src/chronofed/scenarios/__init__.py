"""Scenarios: the clients that take part in each round, and their data."""

from chronofed.scenarios.base import Indices, Plan, Presence, Scenario, Stream, Visit
from chronofed.scenarios.cycles import Blocks, Diurnal
from chronofed.scenarios.membership import (
    NEVER,
    Available,
    Everyone,
    FixedClients,
    Membership,
    OneShot,
    Schedule,
)
from chronofed.scenarios.partition import Prior, split, subset_size, two_level
from chronofed.scenarios.periods import Periods, PeriodStream
from chronofed.scenarios.remote import Remote, RemoteStream
from chronofed.scenarios.settings import ScenarioSettings
from chronofed.scenarios.stateless import Stateless, StatelessStream
from chronofed.scenarios.subsets import Subsets, SubsetStream
from chronofed.scenarios.window import Window, WindowStream

__all__ = [
    "NEVER",
    "Available",
    "Blocks",
    "Diurnal",
    "Everyone",
    "FixedClients",
    "Indices",
    "Membership",
    "OneShot",
    "PeriodStream",
    "Periods",
    "Plan",
    "Presence",
    "Prior",
    "Remote",
    "RemoteStream",
    "Scenario",
    "ScenarioSettings",
    "Schedule",
    "Stateless",
    "StatelessStream",
    "Stream",
    "SubsetStream",
    "Subsets",
    "Visit",
    "Window",
    "WindowStream",
    "split",
    "subset_size",
    "two_level",
]
