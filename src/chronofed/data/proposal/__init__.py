"""Propose settings for a table that nobody has described yet: ``chronofed init``."""

from chronofed.data.proposal.draft import write_spec
from chronofed.data.proposal.findings import Findings, Wishes, look_at

__all__ = ["Findings", "Wishes", "look_at", "write_spec"]
