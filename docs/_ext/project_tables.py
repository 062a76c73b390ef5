"""Pieces of pages that are taken from the code: rooms, exit codes, help texts, public names."""

import argparse
import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from spec_tables import Generated, list_table
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

import chronofed
from chronofed import errors
from chronofed.cli.main import INTERRUPTED
from chronofed.cli.parser import parser

ROOT = Path(__file__).parents[2]
RULE = ROOT / "tests" / "unit" / "test_project.py"  # the test that keeps imports pointing one way


def layers() -> list[list[str]]:
    """Rooms of the package, lowest first, as the test of imports has them."""
    for node in ast.parse(RULE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            found: list[list[str]] = ast.literal_eval(node.value)
            return found
    msg = f"{RULE} has no LAYERS"
    raise LookupError(msg)


def public_names(rooms: list[str]) -> list[str]:
    """Public names that live in some rooms."""
    return [name for name in chronofed.__all__ if _room(getattr(chronofed, name)) in rooms]


def _room(thing: type | object) -> str:
    return str(getattr(thing, "__module__", "")).split(".")[1]


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


class Layers(Generated):
    """``.. layers::``: the rooms, from the lowest to the highest."""

    def lines(self) -> list[str]:
        """A row for every room."""
        rows = [
            (str(rank), f"``{room}``", _first_line(import_module(f"chronofed.{room}").__doc__))
            for rank, rooms in enumerate(layers(), start=1)
            for room in rooms
        ]
        return list_table(("layer", "room", "what it holds"), rows, (8, 17, 75))


class ExitCodes(Generated):
    """``.. exit-codes::``: from the error classes."""

    def lines(self) -> list[str]:
        """A row for every code."""
        classes = [
            cls
            for cls in vars(errors).values()
            if inspect.isclass(cls) and cls.__module__ == errors.__name__
        ]
        rows = [("0", "", "Success.")]
        rows += [(str(c.exit_code), f"``{c.__name__}``", _first_line(c.__doc__)) for c in classes]
        rows += [(str(INTERRUPTED), "", "Interrupted from the keyboard; the run can be resumed.")]
        return list_table(("code", "exception in Python", "meaning"), rows, (8, 27, 65))


class CommandHelp(Generated):
    """``.. command-help::``: the help text of every command."""

    def lines(self) -> list[str]:
        """A section for every command."""
        return [line for name, command in commands() for line in _help(name, command)]


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands and their parsers."""
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _help(name: str, command: argparse.ArgumentParser) -> list[str]:
    title = f"``chronofed {name}``"
    text = command.format_help().splitlines()
    head = ["", f".. _cli-{name}:", "", title, "-" * len(title), "", ".. code-block:: text", ""]
    return [*head, *(f"   {line}" for line in text), ""]


class PublicApi(Generated):
    """``.. public-api:: room room``: autodoc of the public names that live in these rooms."""

    def lines(self) -> list[str]:
        """A directive of autodoc for every name."""
        found = []
        for name in public_names(self.arguments[0].split()):
            kind = "class" if inspect.isclass(getattr(chronofed, name)) else "function"
            found += [f".. auto{kind}:: chronofed.{name}"]
            found += ["   :members:", "   :show-inheritance:", ""] if kind == "class" else [""]
        return found


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives."""
    app.add_directive("layers", Layers)
    app.add_directive("exit-codes", ExitCodes)
    app.add_directive("command-help", CommandHelp)
    app.add_directive("public-api", PublicApi)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
