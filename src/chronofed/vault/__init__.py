"""What a client keeps between rounds, in one SQLite file of its own that survives being killed."""

from chronofed.vault.about import DataSet, Inspection, Removed
from chronofed.vault.store import Vault, inspect

__all__ = ["DataSet", "Inspection", "Removed", "Vault", "inspect"]
