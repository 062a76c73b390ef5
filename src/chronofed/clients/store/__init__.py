"""The client store: one SQLite file per client and run that survives a crash at any instant."""

from chronofed.clients.store.inspection import DataSet, Inspection, Removed
from chronofed.clients.store.store import ClientStore, inspect

__all__ = ["ClientStore", "DataSet", "Inspection", "Removed", "inspect"]
