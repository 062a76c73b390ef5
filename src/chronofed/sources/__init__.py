"""A client's own data, which grow while training goes on; they never leave the client."""

from chronofed.sources.base import Feature, Source
from chronofed.sources.current import (
    Current,
    EachRound,
    Everything,
    LastRows,
    LastTime,
    ThisPeriod,
    span,
)
from chronofed.sources.held import Held, moment, row_id, stamp
from chronofed.sources.kinds import DatabaseSource, FolderSource, TableSource

__all__ = [
    "Current",
    "DatabaseSource",
    "EachRound",
    "Everything",
    "Feature",
    "FolderSource",
    "Held",
    "LastRows",
    "LastTime",
    "Source",
    "TableSource",
    "ThisPeriod",
    "moment",
    "row_id",
    "span",
    "stamp",
]
