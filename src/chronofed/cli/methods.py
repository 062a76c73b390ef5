"""The command ``chronofed methods``."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import msgspec
from rich.table import Table

from chronofed.backbones import Backbone
from chronofed.cli.output import emit, emit_json
from chronofed.config import Kind
from chronofed.experiments.reader import alternatives
from chronofed.memories import Memory
from chronofed.weights import RoundWeights

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
    table = Table(
        header_style="bold", title="method = backbone x memory x weights: any combines with any"
    )
    for heading in (
        "part",
        "kind",
        "settings",
        "needs",
        "returning clients",
        "stateless clients",
        "what it does",
    ):
        table.add_column(heading, overflow="fold")
    for row in rows:
        settings = ", ".join(f"{k}={v}" for k, v in row["settings"].items()) or "-"
        yes = "yes" if row["stateless"] else "no"
        table.add_row(row["part"], row["kind"], settings, row["needs"], "yes", yes, row["about"])
    emit(table)
    return 0


def describe(family: str, name: str, cls: type[Any]) -> dict[str, Any]:
    """One part of methods, from what its class declares."""
    on_client = getattr(cls, "stateful", False) or getattr(cls, "home", "nowhere") == "client"
    return {
        "part": family,
        "kind": name,
        "settings": {
            f.name: "required" if f.required else f.default for f in msgspec.structs.fields(cls)
        },
        "needs": _needs(cls, on_client),
        "stateless": not on_client,
        "about": (cls.__doc__ or "").strip().splitlines()[0],
        "reference": getattr(cls, "reference", ""),
    }


def _needs(cls: type[Any], on_client: bool) -> str:
    wanted = {
        "what its backbone needs": "backbone" in cls.__struct_fields__,
        "state on the client": on_client,
        "data that stay the same": getattr(cls, "fixed_data", False),
    }
    return ", ".join(need for need, wants in wanted.items() if wants) or "nothing"
