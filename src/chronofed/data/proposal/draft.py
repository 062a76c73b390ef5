"""Write a commented specification for a table."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from chronofed.data.proposal.findings import Findings

_ROUNDS = 120
"""Rounds that a first run should take, at most."""


def write_spec(findings: Findings, spec: Path) -> str:
    """Return the specification in TOML; the path of the table starts at the folder of ``spec``."""
    return "\n".join([*_data(findings, spec), "", *_rest(findings)]) + "\n"


def _data(found: Findings, spec: Path) -> Iterator[str]:
    table, origin = found.table, found.data.origin
    assert origin is not None
    path = os.path.relpath(Path(table.path).resolve(), spec.resolve().parent)
    about = f"{found.rows} rows, {len(found.profiles)} columns"
    yield f"# {_text(Path(table.path).name)}: {about}; by chronofed init."
    yield f"name = {_text(Path(table.path).stem)}"
    yield ""
    yield "[data]"
    yield 'kind = "table"'
    yield f"path = {_text(path)}"
    if table.query:
        yield f"query = {_text(table.query)}"
    why = found.reasons
    yield f"client = {_text(table.client)}  # {why['client']}; clients: {len(origin.clients)}"
    yield f"time = {_text(table.time)}  # {why['time']}"
    if table.date_format:
        yield f"date_format = {_text(table.date_format)}  # {why['date_format']}"
    yield f"target = {_text(table.target)}  # {why['target']}"
    yield from _target(found)
    yield f"period = {_text(str(table.period))}  # {why['period']}"
    if table.growing:
        yield f"growing = true  # {why['growing']}"
    yield f"fit_periods = {table.fit_periods}  # {why['fit_periods']}"
    yield from _features(found)


def _target(found: Findings) -> Iterator[str]:
    if "task" in type(found.table).__struct_fields__:
        yield f"task = {_text(found.task)}"
    if found.table.classes:
        shares = dict(found.profiles[found.table.target].shares)
        listed = ", ".join(_text(str(name)) for name in found.table.classes)
        yield f"classes = [{listed}]  # {_shares(shares)} of the rows"
        yield "# other_class = true  # an output for classes that come later; without it they are an error"


def _features(found: Findings) -> Iterator[str]:
    yield "features = ["
    for name in found.table.features:
        yield f"    {_text(name)},  # {found.profiles[name].about}"
    yield "]"
    for name, reason in found.left_out.items():
        yield f"# left out: {_text(name)}, {reason}"


def _rest(found: Findings) -> Iterator[str]:
    assert found.data.origin is not None
    periods = len(found.data.origin.periods)
    rounds = max(1, min(4, _ROUNDS // periods))
    deep = len(found.data.shape) > 1
    model = 'kind = "cnn1d"' if len(found.data.shape) == 2 else 'kind = "mlp"\nhidden = [64]'
    yield "[model]"
    yield model if deep else 'kind = "mlp"\nhidden = [32]'
    yield ""
    yield "[scenario]"
    yield 'kind = "periods"'
    yield f"rounds_per_period = {rounds}  # {periods} periods, {periods * rounds} rounds"
    yield ""
    yield "[method.memory]"
    yield 'kind = "core-set"'
    yield "size = 10  # rows of every period that a client keeps and trains on again"
    yield ""
    yield "[train]"
    yield "lr = 0.05  # scaled numbers; try 0.01 if the loss grows, 0.2 if it hardly falls"
    yield "epochs = 2"


def _shares(shares: dict[str, float]) -> str:
    """Return the shares of the most frequent classes.

    >>> _shares({"no": 0.611, "yes": 0.389})
    'no 61.1%, yes 38.9%'
    """
    some = [f"{_comment(name)} {share:.1%}" for name, share in list(shares.items())[:5]]
    more = [f"{len(shares) - 5} more"] if len(shares) > 5 else []
    return ", ".join(some + more)


def _comment(text: str) -> str:
    """Return a text that fits into a line."""
    return text if text.isprintable() else _text(text)


def _text(text: str) -> str:
    """Write a string of TOML."""
    return json.dumps(text, ensure_ascii=not text.isprintable())
