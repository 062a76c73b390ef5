"""Parts of pages that come from the code: rooms, exit codes, measures, help texts, public names."""

import argparse
import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from spec_tables import Generated, find, list_table
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.typing import ExtensionMetadata

import chronofed
from chronofed.cli.main import INTERRUPTED, build_parser
from chronofed.core import errors
from chronofed.training.measures import MEASURES, OPTIONAL

ROOT = Path(__file__).parents[2]
RULE = ROOT / "tests" / "unit" / "test_project.py"  # the test that keeps imports pointing one way


def layers() -> list[str]:
    """Return the rooms of the package, lowest first, from the test of imports."""
    for node in ast.parse(RULE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS":
            found: list[str] = ast.literal_eval(node.value)
            return found
    msg = f"{RULE} has no ROOMS"
    raise LookupError(msg)


def public_names(rooms: list[str]) -> list[str]:
    """Return the public names of some rooms."""
    return [name for name, (module, _) in chronofed._HOME.items() if module.split(".")[1] in rooms]


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


class Layers(Generated):
    """``.. layers::``: the rooms, from the lowest to the highest."""

    def lines(self) -> list[str]:
        """Return a row for every room."""
        rows = [
            (str(rank), f"``{room}``", _first_line(import_module(f"chronofed.{room}").__doc__))
            for rank, room in enumerate(layers(), start=1)
        ]
        return list_table(("layer", "room", "what it holds"), rows, (8, 17, 75))


class ExitCodes(Generated):
    """``.. exit-codes::``: from the error classes."""

    def lines(self) -> list[str]:
        """Return a row for every code."""
        classes = [
            cls
            for cls in vars(errors).values()
            if inspect.isclass(cls) and cls.__module__ == errors.__name__
        ]
        rows = [("0", "", "Success.")]
        rows += [(str(c.exit_code), f"``{c.__name__}``", _first_line(c.__doc__)) for c in classes]
        rows += [(str(INTERRUPTED), "", "Interrupted from the keyboard; the run can be resumed.")]
        return list_table(("code", "exception in Python", "meaning"), rows, (8, 27, 65))


class Measures(Generated):
    """``.. measures::``: the registry of measures."""

    measures = MEASURES
    first = (("``round``", "rounds finished", "", "", "``rounds``"),)

    def lines(self) -> list[str]:
        """Return a row for every measure of an evaluation."""
        rows = [
            (
                f"``{measure.key}``",
                measure.description,
                measure.unit,
                measure.better or "",
                ", ".join(f"``{measure.summary_key(s)}``" for s in measure.summary)
                if "summary" in measure.shown
                else "",
            )
            for measure in self.measures
            if measure.compute
        ]
        headings = ("key", "meaning", "unit", "better", "in ``summary.json``")
        return list_table(
            headings,
            [*self.first, *rows],
            (21, 43, 9, 8, 19),
        )


class OptionalMeasures(Measures):
    """``.. optional-measures::``: measures that ``evaluate.measures`` can name."""

    measures = OPTIONAL
    first = ()


class CommandHelp(Generated):
    """``.. command-help::``: the help text of every command."""

    def lines(self) -> list[str]:
        """Return a section for every command."""
        return [line for name, command in commands() for line in _help(name, command)]


def commands(
    root: argparse.ArgumentParser | None = None, before: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield all commands with their parsers, each followed by its own subcommands."""
    for action in (root or build_parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield f"{before}{name}", command
                yield from commands(command, f"{before}{name} ")


def _help(name: str, command: argparse.ArgumentParser) -> list[str]:
    title = f"``chronofed {name}``"
    text = command.format_help().splitlines()
    label = name.replace(" ", "-")
    head = ["", f".. _cli-{label}:", "", title, "-" * len(title), "", ".. code-block:: text", ""]
    return [*head, *(f"   {line}" for line in text), ""]


class PublicApi(Generated):
    """``.. public-api:: room room``: autodoc of the public names that live in these rooms."""

    def lines(self) -> list[str]:
        """Return a directive of autodoc for every name."""
        found = []
        for name in public_names(self.arguments[0].split()):
            thing = getattr(chronofed, name)
            if inspect.isclass(thing):
                found += [f".. autoclass:: chronofed.{name}", "   :members:"]
                found += ["   :show-inheritance:", ""]
            elif inspect.isfunction(thing):
                found += [f".. autofunction:: chronofed.{name}", ""]
            else:
                found += [f"``{name}``: ``{thing}``", ""]
        return found or ["None at present."]


class Contract(Generated):
    """``.. contract:: module:Class``: the interface of a base class, from its own docstrings."""

    def lines(self) -> list[str]:
        """Return a definition list of class variables and functions."""
        return contract(find(self.arguments[0]))


def contract(base: type) -> list[str]:
    """List class variables and public functions of a base class, each with its docstring."""
    notes = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
    texts = {f"``{name}``": note for (cls, name), note in notes.items() if cls == base.__name__}
    for name, function in vars(base).items():
        if inspect.isfunction(function) and (name == "__call__" or not name.startswith("_")):
            arguments = ", ".join([*inspect.signature(function).parameters][1:])
            shown = "" if name == "__call__" else name
            texts[f"``{shown}({arguments})``"] = [
                *inspect.cleandoc(function.__doc__ or "").split("\n")
            ]
    return [line for term, text in texts.items() for line in (term, f"   {_summary(text)}", "")]


def _summary(lines: list[str]) -> str:
    """Return everything before the first section, as one paragraph."""
    text = "\n".join(lines)
    return " ".join(re.split(r"\n(?:Args|Returns|Yields|Raises):\n", text)[0].split())


def readable(*event: Any) -> tuple[str, str | None] | None:
    """Shorten a signature to what people write: ranges of settings are in the reference of specs."""
    *_, signature, returns = event
    if not signature:
        return None
    plain = re.sub(r"Annotated\[(\w+), msgspec\.Meta\([^)]*\)\]", r"\1", signature)
    return plain.replace("<factory>", "..."), returns


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives."""
    app.add_directive("layers", Layers)
    app.add_directive("exit-codes", ExitCodes)
    app.add_directive("command-help", CommandHelp)
    app.add_directive("measures", Measures)
    app.add_directive("optional-measures", OptionalMeasures)
    app.add_directive("public-api", PublicApi)
    app.add_directive("contract", Contract)
    app.connect("autodoc-process-signature", readable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
