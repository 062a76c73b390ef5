"""The command ``chronofed methods``."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chronofed.cli.options import add_json
from chronofed.cli.output import emit, emit_json, width
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    from rich.table import Table

    from chronofed.core.config import Kind
    from chronofed.runs.spec_reference import Key

GROUP = "settings and data"
HELP = "list the parts of methods: backbones, memories ...; or show one"

# Longer lines of text are hard to read.
WIDEST = 80
MORE = (
    "Any backbone goes with any memory and any weights. Stateless: clients need not come back. "
    "chronofed methods NAME shows the settings of one, its needs, costs and reference."
)
COSTS = "measured on a small run, in models"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "show everything about this one, e.g. fedprox or core-set (default: list all)"
    parser.add_argument("name", nargs="?", metavar="NAME", help=text)
    add_json(parser)


def families() -> "Mapping[str, type[Kind]]":
    """Return the base class of each part of a method, and of what parts may hold: detectors and assignments."""
    from chronofed.methods.backbones import Backbone
    from chronofed.methods.clusters import Assignment
    from chronofed.methods.detectors import Detector
    from chronofed.methods.heads import Head
    from chronofed.methods.losses import LocalLoss
    from chronofed.methods.memories import Memory
    from chronofed.methods.weighting import RoundWeights

    parts: Mapping[str, type[Kind]] = {
        "backbone": Backbone,
        "memory": Memory,
        "weights": RoundWeights,
        "loss": LocalLoss,
        "head": Head,
        "detector": Detector,
        "assignment": Assignment,
    }
    return parts


def run(options: Namespace) -> int:
    """List the parts of methods, or show one of them."""
    from chronofed.core.spec_io import alternatives

    known = [
        (family, name, cls)
        for family, base in families().items()
        for name, cls in alternatives(base).items()
    ]
    if options.name is not None:
        part = find(options.name, known)
        _show(part, options.json)
    elif options.json:
        emit_json([_whole(part) for part in known])
    else:
        _list(known)
    return 0


def find(
    wanted: str, known: "Sequence[tuple[str, str, type[Kind]]]"
) -> "tuple[str, str, type[Kind]]":
    """Return the part of this name.

    Raises:
        SpecError: If there is none, with the nearest names.
    """
    from difflib import get_close_matches

    names = [name for _, name, _ in known]
    if wanted in names:
        return known[names.index(wanted)]
    near = get_close_matches(wanted, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "list all with: chronofed methods"
    raise SpecError(f"methods {wanted}: no such part of a method; {hint}")


def _list(known: "Sequence[tuple[str, str, type[Kind]]]") -> None:
    from rich.text import Text

    rows = [describe(*part) for part in known]
    longest = max(len(row["kind"]) for row in rows)
    for family in families():
        emit(_table(family, [row for row in rows if row["part"] == family], longest))
        emit("")
    emit(Text(MORE))


def _table(family: str, rows: Sequence[Mapping[str, Any]], longest: int) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(family, no_wrap=True, min_width=longest)
    table.add_column("stateless", no_wrap=True)
    table.add_column("what it does")
    for row in rows:
        table.add_row(row["kind"], _stateless(row), Text(row["about"]))
    return table


def _stateless(row: Mapping[str, Any]) -> str:
    if not row["stateless"]:
        return "no"
    if row["part"] == "detector":
        return "as holder"
    return "as inner" if "backbone" in row["settings"] else "yes"


def _show(part: "tuple[str, str, type[Kind]]", as_json: bool) -> None:
    from rich.text import Text

    row = _whole(part)
    if as_json:
        emit_json(row)
    else:
        emit(Text("\n".join(_lines(row, part[2]))))


def _lines(row: Mapping[str, Any], cls: "type[Kind]") -> Iterator[str]:
    """Lay out everything about one part for a terminal."""
    from chronofed.cli.spec import plain
    from chronofed.runs.spec_reference import summary

    yield f"{row['part']} {row['kind']}"
    yield from _wrapped("", plain(summary(cls)), 2)
    yield ""
    reasons = {
        "no": "no: clients must come back",
        "as inner": "as its backbone is",
        "as holder": "as the part is that holds it",
    }
    stateless = reasons.get(_stateless(row), "yes")
    facts = {"needs": row["needs"], "stateless": stateless, "reference": row["reference"] or "-"}
    if row["costs"] is not None:
        each = "; for each data set or record" if row["part"] == "memory" else ""
        facts |= {"costs": f"{shown_costs(row['costs'])} ({COSTS}{each})"}
    for name, text in sorted(facts.items()):
        yield from _wrapped(name, text, 13)
    yield from _settings(row["part"], cls)


def _settings(part: str, cls: "type[Kind]") -> Iterator[str]:
    from chronofed.cli.spec import plain
    from chronofed.runs.spec_reference import keys

    found = keys(cls)
    yield from ("", "settings" if found else "no settings")
    for key in found:
        kind = plain(key.type) if key.section is None else f"[{_place(part, key)}]"
        default = "required" if key.default == "required" else f"default: {plain(key.default)}"
        yield from _wrapped(key.name, f"{kind}; {default}", 4 + max(len(k.name) for k in found))
        yield from _wrapped("", plain(key.meaning), 6)


def _place(part: str, key: "Key") -> str:
    """Return the table of a specification that holds a setting, which several kinds of part may have."""
    if part in ("backbone", "memory", "weights"):
        return f"method.{part}.{key.name}"
    return key.section.place if key.section else key.name


def _wrapped(name: str, text: str, indent: int) -> list[str]:
    """Wrap text beside a name, which is indented itself."""
    from textwrap import wrap

    first = f"  {name}".ljust(indent) if name else " " * indent
    room = min(width(), WIDEST)
    return wrap(
        text,
        room,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )


def shown_costs(costs: Mapping[str, Any]) -> str:
    """Put the costs of a part into a few words."""
    parts = [f"{costs['down_models']:g} down and {costs['up_models']:g} up a round"]
    parts += [f"{costs['client_models']:g} on a client"] if costs["client_models"] else []
    parts += [f"{costs['server_models']:g} more on the server"] if costs["server_models"] else []
    return ", ".join(parts) + (", samples on the client" if costs["client_samples"] else "")


def describe(family: str, name: str, cls: type[Any]) -> dict[str, Any]:
    """Describe one part of a method by what its class declares."""
    import msgspec

    on_client = getattr(cls, "stateful", False) or getattr(cls, "location", "none") == "client"
    return {
        "part": family,
        "kind": name,
        "settings": {
            f.name: "required" if f.required else _default(f) for f in msgspec.structs.fields(cls)
        },
        "needs": _needs(cls, on_client),
        "stateless": not on_client,
        "about": _about(cls),
        "reference": getattr(cls, "reference", ""),
    }


def _whole(part: "tuple[str, str, type[Kind]]") -> dict[str, Any]:
    """Describe one part, and measure its costs."""
    family, _, cls = part
    return {**describe(*part), "costs": _costs(family, cls)}


def _about(cls: type[Any]) -> str:
    """Return the first line of the docstring, without references to labels."""
    from chronofed.cli.spec import plain

    lines = (cls.__doc__ or cls.__name__).strip().splitlines()
    return plain(re.sub(r"(, :math:`.*`| \(``.*?``\))", "", lines[0]))


def _default(field: Any) -> Any:
    import msgspec

    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _costs(family: str, cls: type[Any]) -> dict[str, Any] | None:
    """Measure a part in a method that is plain otherwise.

    Returns:
        ``None`` for a detector or an assignment, which are no parts of a method by themselves, and if the part
        has required settings.
    """
    from dataclasses import asdict

    import msgspec

    from chronofed.methods.method import Method
    from chronofed.studies.costs import costs

    if family in ("detector", "assignment") or any(
        field.required for field in msgspec.structs.fields(cls)
    ):
        return None
    # Private backbones need the plain mean over clients.
    return asdict(costs(Method(**{family: cls()}, average="clients")))


def _needs(cls: type[Any], on_client: bool) -> str:
    wanted = {
        "what its backbone needs": "backbone" in cls.__struct_fields__,
        "state on the client": on_client,
        "data that do not change": getattr(cls, "fixed_data", False),
    }
    return ", ".join(need for need, wants in wanted.items() if wants) or "nothing"
