"""The user's own code: import it, call it, and show its errors with the user's frames alone."""

import importlib
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chronofed.core.errors import ChronofedError, SpecError, UserCodeError

PACKAGE = str(Path(__file__).parents[1])
STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]
CARRIED = "chronofed_user_traceback"
"""Attribute with the user's frames of an error that comes from another process, where its own got lost."""


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Turn any error of the block, even ``sys.exit``, into a :class:`UserCodeError`.

    Errors that are meant for the user already, and Ctrl-C, pass.

    Args:
        what: The beginning of the message, such as ``model custom: mine:build failed``.
    """
    try:
        yield
    except (ChronofedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserCodeError(f"{what}: {in_one_line(error)}", user_traceback(error)) from error


@contextmanager
def user_frames_only() -> Iterator[None]:
    """Turn an error that passed through the user's code into a :class:`UserCodeError`; leave all others."""
    try:
        yield
    except (ChronofedError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if not user_traceback(error):
            raise
        raise as_user_error(error) from error


def as_user_error(error: BaseException) -> UserCodeError:
    """Describe an error of the user's own code."""
    return UserCodeError(f"your own code failed: {in_one_line(error)}", user_traceback(error))


def import_name(path: str, where: str, action: str = "cannot import") -> Any:
    """Import an object of the user, given as ``package.module:name``.

    Args:
        path: The path.
        where: Place in the specification, for messages.
        action: What could not be done, for messages.

    Raises:
        SpecError: If there is no such module or name.
        UserCodeError: If the module itself fails, in whatever way.
    """
    module, _, name = path.partition(":")
    failed = f"{where}: {action} {path!r}"
    if not module or not name or module.startswith("."):
        raise SpecError(f"{failed}: expected package.module:name")
    try:
        with user_code(failed):
            found = importlib.import_module(module)
    except UserCodeError as error:
        if error.frames:
            raise
        hint = "is it installed, or its folder in PYTHONPATH?"
        raise SpecError(f"{failed}: {in_one_line(error.__cause__)}; {hint}") from error.__cause__
    if not hasattr(found, name):
        raise SpecError(f"{failed}: module {module!r} has no attribute {name!r}")
    return getattr(found, name)


def in_one_line(error: BaseException | None) -> str:
    """Describe an error in one line; that a module is missing needs no name of a class."""
    text = " ".join(str(error).split())
    if isinstance(error, SystemExit):
        return f"it called sys.exit({text})"
    if isinstance(error, ModuleNotFoundError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def user_traceback(error: BaseException) -> str:
    """Format the frames in the user's files, and the error; empty if no frame is."""
    if carried := error.__dict__.get(CARRIED):
        return str(carried)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not _in_library(frame.filename)
    ]
    if not frames and not isinstance(error, SyntaxError):
        return ""
    lines = traceback.format_list(frames) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def _in_library(filename: str) -> bool:
    installed = {"site-packages", "dist-packages"} & set(Path(filename).parts)
    return bool(installed) or filename.startswith(("<frozen ", PACKAGE, STANDARD_LIBRARY))
