"""Printing what the library logs."""

import logging

from chronofed.cli.output import note


class NoteHandler(logging.Handler):
    """Prints the library's log records as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        note(self.format(record))


def print_logs() -> None:
    """Print what the library logs, once however often a command is called."""
    logger = logging.getLogger("chronofed")
    if not any(isinstance(handler, NoteHandler) for handler in logger.handlers):
        logger.addHandler(NoteHandler())
