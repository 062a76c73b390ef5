"""A client's own data: they grow while training runs, and never leave the client."""

from chronofed.data.client_source.client_data import (
    ClientData,
    from_microseconds,
    row_id,
    to_microseconds,
)
from chronofed.data.client_source.current import (
    Current,
    EachRound,
    Everything,
    LastRows,
    LastTime,
    ThisPeriod,
    parse_duration,
)
from chronofed.data.client_source.kinds import Sqlite, TableFile, TableFolder
from chronofed.data.client_source.source import Source
from chronofed.data.preparation import Feature

__all__ = [
    "ClientData",
    "Current",
    "EachRound",
    "Everything",
    "Feature",
    "LastRows",
    "LastTime",
    "Source",
    "Sqlite",
    "TableFile",
    "TableFolder",
    "ThisPeriod",
    "from_microseconds",
    "parse_duration",
    "row_id",
    "to_microseconds",
]
