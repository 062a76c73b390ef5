"""The command ``chronofed methods``."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chronofed.cli.options import add_json
from chronofed.cli.output import emit, emit_json

if TYPE_CHECKING:
    from chronofed.core.config import Kind

GROUP = "settings and data"
HELP = "list backbones, memories, weights and detectors, and what they need"

CAPTION = (
    "Costs are measured on a small run, in units of the model size: sent down to and up from a client each "
    "round, and kept by a client or by the server (memories on the server: for each client and remembered "
    "round). A Taylor memory costs the share that its layers have in the model."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_json(parser)


def families() -> "Mapping[str, type[Kind]]":
    """Return the base class of each part of a method, and of the detectors that parts may hold."""
    from chronofed.methods.backbones import Backbone
    from chronofed.methods.detectors import Detector
    from chronofed.methods.memories import Memory
    from chronofed.methods.weighting import RoundWeights

    parts: Mapping[str, type[Kind]] = {
        "backbone": Backbone,
        "memory": Memory,
        "weights": RoundWeights,
        "detector": Detector,
    }
    return parts


def run(options: Namespace) -> int:
    """List the parts of methods, what each needs, and whether stateless clients can serve it."""
    from rich.table import Table

    from chronofed.core.spec_io import alternatives

    bases = families()
    rows = [
        describe(family, name, cls)
        for family, base in bases.items()
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
        if row["kind"] == list(alternatives(bases[row["part"]]))[-1]:
            table.add_section()
    emit(table)
    return 0


def _show(costs: Mapping[str, Any] | None) -> str:
    if costs is None:
        return "-"
    parts = [f"down {costs['down_models']:g}", f"up {costs['up_models']:g}"]
    parts += [f"client {costs['client_models']:g}"] if costs["client_models"] else []
    parts += [f"server {costs['server_models']:g}"] if costs["server_models"] else []
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
        "costs": _costs(family, cls),
        "about": _about(cls),
        "reference": getattr(cls, "reference", ""),
    }


def _about(cls: type[Any]) -> str:
    """Return the first line of the docstring, without references to labels."""
    lines = (cls.__doc__ or cls.__name__).strip().splitlines()
    return re.sub(r"(, :math:`.*`| \(``.*?``\))", "", lines[0])


def _default(field: Any) -> Any:
    import msgspec

    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _costs(family: str, cls: type[Any]) -> dict[str, Any] | None:
    """Measure a part in a method that is plain otherwise.

    Returns:
        ``None`` for a detector, which is no part of a method by itself, and if the part has required settings.
    """
    from dataclasses import asdict

    import msgspec

    from chronofed.methods.method import Method
    from chronofed.studies.costs import costs

    if family == "detector" or any(field.required for field in msgspec.structs.fields(cls)):
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
