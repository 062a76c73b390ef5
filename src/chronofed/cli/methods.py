"""The command ``chronofed methods``."""

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec
from rich.table import Table

from chronofed.backbones import Backbone
from chronofed.cli.output import emit, emit_json
from chronofed.config import Kind
from chronofed.experiments.costs import costs
from chronofed.experiments.reader import alternatives
from chronofed.memories import Memory
from chronofed.protocol import Method
from chronofed.weights import RoundWeights

CAPTION = (
    "Costs were measured on a small run, in units of the model's size: sent to and from a client each round, "
    "and kept by a client, or by the server (its memory: for each client and round remembered). "
    "A Taylor memory costs that share of its layers in the model."
)

FAMILIES: Mapping[str, type[Kind]] = {
    "backbone": Backbone,
    "memory": Memory,
    "weights": RoundWeights,
}


def main(options: Namespace) -> int:
    """List what methods are made of, what each part needs, and which scenarios can serve it."""
    rows = [
        describe(family, name, cls)
        for family, base in FAMILIES.items()
        for name, cls in alternatives(base).items()
    ]
    if options.json:
        emit_json(rows)
        return 0
    title = "method = backbone x memory x weights: any combines with any"
    table = Table(header_style="bold", title=title, caption=CAPTION)
    for heading in (
        "part",
        "kind",
        "settings",
        "needs",
        "stateless clients",
        "costs",
        "what it does",
    ):
        table.add_column(heading, overflow="fold")
    for row in rows:
        settings = "\n".join(f"{k}={v}" for k, v in row["settings"].items()) or "-"
        stateless = "yes" if row["stateless"] else "no"
        table.add_row(
            row["part"],
            row["kind"],
            settings,
            row["needs"],
            stateless,
            _show(row["costs"]),
            row["about"],
        )
        if row["kind"] == list(alternatives(FAMILIES[row["part"]]))[-1]:
            table.add_section()
    emit(table)
    return 0


def _show(costs: Mapping[str, Any] | None) -> str:
    if costs is None:
        return "-"
    parts = [f"down {costs['down']:g}", f"up {costs['up']:g}"]
    parts += [f"client {costs['client']:g}"] if costs["client"] else []
    parts += [f"server {costs['server']:g}"] if costs["server"] else []
    return ", ".join(parts) + (", samples on the client" if costs["samples"] else "")


def describe(family: str, name: str, cls: type[Any]) -> dict[str, Any]:
    """One part of methods, from what its class declares."""
    on_client = getattr(cls, "stateful", False) or getattr(cls, "home", "nowhere") == "client"
    return {
        "part": family,
        "kind": name,
        "settings": {
            f.name: "required" if f.required else _default(f) for f in msgspec.structs.fields(cls)
        },
        "needs": _needs(cls, on_client),
        "stateless": not on_client,
        "costs": _costs(family, cls),
        "about": _about(cls),
        "reference": getattr(cls, "reference", ""),
    }


def _about(cls: type[Any]) -> str:
    """The first line of the docstring, without references to labels."""
    lines = (cls.__doc__ or cls.__name__).strip().splitlines()
    return re.sub(r"(, :math:`.*`| \(``.*?``\))", "", lines[0])


def _default(field: Any) -> Any:  # noqa: ANN401 - a msgspec field and its value
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _costs(family: str, cls: type[Any]) -> dict[str, Any] | None:
    """Measured costs of a part in a method that is plain otherwise; ``None`` if it must be configured."""
    if any(field.required for field in msgspec.structs.fields(cls)):
        return None
    return asdict(costs(Method(**{family: cls()}, average="clients")))  # as private ones need it


def _needs(cls: type[Any], on_client: bool) -> str:
    wanted = {
        "what its backbone needs": "backbone" in cls.__struct_fields__,
        "state on the client": on_client,
        "data that stay the same": getattr(cls, "fixed_data", False),
    }
    return ", ".join(need for need, wants in wanted.items() if wants) or "nothing"
