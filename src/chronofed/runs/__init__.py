"""Runs on disk: one directory a run, every write atomic, no pickle."""

from chronofed.runs.directory import RunDirectory

__all__ = ["RunDirectory"]
