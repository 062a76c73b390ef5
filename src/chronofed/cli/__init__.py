"""The command line: a thin layer over the library."""

from chronofed.cli.main import main

__all__ = ["main"]
