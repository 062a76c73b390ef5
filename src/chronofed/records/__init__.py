"""Runs on disk: one directory a run, every write atomic, no pickle."""

from chronofed.records.directory import RunDirectory

__all__ = ["RunDirectory"]
