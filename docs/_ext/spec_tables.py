"""Tables of everything that a specification can say, made from the settings classes themselves.

``render`` walks from :class:`~chronofed.experiments.spec.Experiment` through all nested settings and all
shipped alternatives: names and types come from the annotations, ranges from their ``Meta``, defaults from
the classes and meanings from the ``Attributes`` of their docstrings. A new backbone, memory or scenario is
in the tables as soon as it exists.
"""

import inspect
import re
import types
import typing
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Literal

import msgspec
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles
from sphinx.util.typing import ExtensionMetadata

from chronofed.cli.methods import FAMILIES, describe
from chronofed.config import Config, Kind, is_alternative, kind_of
from chronofed.experiments import toml
from chronofed.experiments.reader import alternatives
from chronofed.experiments.spec import Experiment
from chronofed.sources import Source

Settings = type[Config]

PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text"}
BOUNDS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}", "min_length": "at least {} long"}


@dataclass(frozen=True, slots=True)
class Section:
    """One place of a specification and what can stand there."""

    place: str  # "" for the top, "method.backbone" for [method.backbone]
    choices: tuple[Settings, ...]  # several, or one that has a kind: the table must name its kind
    many: bool = False  # whether it is an array of tables

    @property
    def label(self) -> str:
        """Target of links to this section."""
        return "spec-" + (self.place.replace(".", "-") or "top")

    @property
    def title(self) -> str:
        """Heading."""
        if not self.place:
            return "Top level"
        return f"[[{self.place}]]" if self.many else f"[{self.place}]"


@cache
def sections() -> tuple[Section, ...]:
    """All places of a specification, in the order of an experiment's fields, then those of a client's own file.

    Settings that can stand in several places, or inside themselves, are listed where they are nearest
    to the top.
    """
    roots = (Section("", (Experiment,)), Section("source", shipped(Source)))
    found = {frozenset(root.choices): root for root in roots}
    ahead = deque(found.values())
    while ahead:
        section = ahead.popleft()
        for name, hint in (item for cls in section.choices for item in _hints(cls).items()):
            choices = _choices(hint)
            if choices and frozenset(choices) not in found:
                inner = Section(f"{section.place}.{name}".lstrip("."), choices, bool(_items(hint)))
                found[frozenset(choices)] = inner
                ahead.append(inner)
    return tuple(sorted(found.values(), key=lambda section: _rank(section.place)))


def _rank(place: str) -> list[int]:
    """Places in the order of the fields of an experiment."""
    settings, rank = [Experiment], []
    names = list(filter(None, place.split(".")))
    if names[:1] == ["source"]:
        settings, rank, names = (
            list(shipped(Source)),
            [len(Experiment.__struct_fields__)],
            names[1:],
        )
    for name in names:
        owner = next(cls for cls in settings if name in cls.__struct_fields__)
        rank.append(owner.__struct_fields__.index(name))
        settings = list(_choices(_hints(owner)[name]))
    return rank


def render() -> str:
    """The whole reference as reStructuredText."""
    return "\n".join(line for section in sections() for line in _section(section))


def _section(section: Section) -> Iterator[str]:
    yield from (f".. _{section.label}:", "") if section.place else ()
    yield from (section.title, "=" * len(section.title), "")
    for settings in section.choices:
        if is_alternative(settings):
            heading = f'``kind = "{kind_of(settings)}"``'
            yield from ("", heading, "-" * len(heading), "")
        yield from (_summary(settings), "")
        yield from table(settings)


def table(settings: Settings) -> list[str]:
    """A list table of the settings of one class; a sentence where there are none."""
    meanings, hints = attributes(settings), _hints(settings)
    rows = [
        (
            f"``{field.name}``",
            _type(hints[field.name]),
            _default(field),
            meanings.get(field.name, "(see above)"),
        )
        for field in msgspec.structs.fields(settings)
    ]
    if not rows:
        return ["No settings.", ""]
    return list_table(("key", "type", "default", "meaning"), rows, (16, 24, 18, 42))


def list_table(
    headings: Iterable[str], rows: Iterable[Iterable[str]], widths: Iterable[int]
) -> list[str]:
    """Lines of a list table."""
    lines = [".. list-table::", "   :header-rows: 1", "   :width: 100%"]
    lines += [f"   :widths: {' '.join(map(str, widths))}"]
    for row in (headings, *rows):
        cells = [" ".join(cell.split()) or "—" for cell in row]
        lines += ["", f"   * - {cells[0]}", *(f"     - {cell}" for cell in cells[1:])]
    return [*lines, ""]


def attributes(settings: type[Any]) -> dict[str, str]:
    """What the docstrings of a class and of its bases say about each field."""
    meanings: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        _, _, section = inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition(
            "Attributes:\n"
        )
        own = re.split(r"\n(?=\S)", section)[0]
        entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", own, re.MULTILINE)
        meanings |= dict(entries)
    return meanings


def _summary(settings: Settings) -> str:
    """The first paragraph of the docstring."""
    return inspect.cleandoc(settings.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _hints(settings: Settings) -> dict[str, Any]:
    hints = typing.get_type_hints(settings, include_extras=True)
    return {name: hints[name] for name in settings.__struct_fields__}


def _options(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _choices(hint: Any) -> tuple[Settings, ...]:  # noqa: ANN401
    """The settings classes that a field can hold: all shipped ones, if it names a base."""
    named = (o for o in _items(hint) or _options(hint) if _is_settings(o))
    return tuple(choice for cls in named for choice in shipped(cls))


def _items(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """What a list of settings holds; nothing for any other type."""
    first = typing.get_args(hint)[:1] if typing.get_origin(hint) is tuple else ()
    return tuple(cls for cls in first if _is_settings(cls))


def _is_settings(hint: Any) -> bool:  # noqa: ANN401
    return isinstance(hint, type) and issubclass(hint, Config)


def shipped(base: Settings) -> tuple[Settings, ...]:
    """The class itself if it can be used as it is, else its alternatives that the package brings."""
    if not issubclass(base, Kind) or is_alternative(base):
        return (base,)
    every = alternatives(base).values()
    return tuple(cls for cls in every if cls.__module__.startswith("chronofed."))


def _type(hint: Any) -> str:  # noqa: ANN401
    """A type in the words of somebody who writes TOML."""
    choices = frozenset(_choices(hint))
    if choices:
        section = next(s for s in sections() if frozenset(s.choices) == choices)
        return f":ref:`{section.title} <{section.label}>`"
    options = [option for option in _options(hint) if option is not type(None)]
    return " or ".join(_words(option) for option in options)


def _words(hint: Any) -> str:  # noqa: ANN401 - one line a case
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return " ".join([_words(parts[0]), *(_range(meta) for meta in parts[1:])])
    if origin is Literal:
        return " or ".join(f'``"{part}"``' for part in parts)
    if origin is tuple and parts[1:] == (...,):
        return f"list of ({_words(parts[0])})"
    if origin is tuple:
        return f"list: {', '.join(map(_words, parts))}"
    if origin is dict:
        return f"table of {_type(parts[1])}"
    return PLAIN.get(hint, str(hint))


def _range(meta: msgspec.Meta) -> str:
    bounds = ((text, getattr(meta, name)) for name, text in BOUNDS.items())
    return " and ".join(text.format(bound) for text, bound in bounds if bound is not None)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None:
        return "none: leave it out"
    if isinstance(value, Kind):
        return f'``kind = "{kind_of(value)}"``'
    if isinstance(value, Config):
        return "its own defaults"
    text = toml.dumps({"x": [msgspec.to_builtins(value)]})  # in a list a table stays in its line
    return f"``{text.strip().removeprefix('x = [').removesuffix(']')}``"


def parts_table(base: type[Kind]) -> list[str]:
    """All shipped alternatives of a base, a line each; for parts of a method also what they need."""
    classes = shipped(base)
    rows = [[f"``{kind_of(cls)}``", _named(cls), _summary(cls)] for cls in classes]
    family = next((name for name, known in FAMILIES.items() if known is base), None)
    if family is None:
        return list_table(("kind", "class", "what it does"), rows, (15, 20, 65))
    needs = [describe(family, kind_of(cls), cls)["needs"] for cls in classes]
    rows = [[*row, need] for row, need in zip(rows, needs, strict=True)]
    return list_table(("kind", "class", "what it does", "needs"), rows, (13, 17, 50, 20))


def _named(cls: type[Any]) -> str:
    return f":class:`{cls.__name__} <{cls.__module__}.{cls.__qualname__}>`"


def find(path: str) -> Any:  # noqa: ANN401
    """What is at ``module:name``."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


class Generated(SphinxDirective):
    """Base of directives that parse text which the code itself gives; use them inside eval-rst."""

    optional_arguments = 1
    final_argument_whitespace = True

    def lines(self) -> list[str]:
        """ReStructuredText."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parse the text; the page is read again at every build, since it depends on the code."""
        self.env.note_reread()
        holder = nodes.section()
        holder.document = self.state.document
        source = StringList(self.lines(), source=f"generated by {self.name}")
        nested_parse_with_titles(self.state, source, holder, self.content_offset)
        return holder.children


class SpecTables(Generated):
    """``.. spec-tables::``: every key of a specification."""

    def lines(self) -> list[str]:
        """All sections."""
        return render().splitlines()

    def run(self) -> list[nodes.Node]:
        """Parse, and note the labels: those of a nested document are not noted by themselves."""
        domain = self.env.domains["std"]
        for section in filter(lambda section: section.place, sections()):
            label = section.label
            domain.note_hyperlink_target(label, self.env.docname, label, section.title)
        return super().run()


class SettingsTable(Generated):
    """``.. settings-table:: module:Class``: the settings of one class."""

    def lines(self) -> list[str]:
        """One table."""
        return table(find(self.arguments[0]))


class PartsTable(Generated):
    """``.. parts-table:: module:Base``: all alternatives of a base."""

    def lines(self) -> list[str]:
        """One table."""
        return parts_table(find(self.arguments[0]))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives."""
    app.add_directive("spec-tables", SpecTables)
    app.add_directive("settings-table", SettingsTable)
    app.add_directive("parts-table", PartsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
