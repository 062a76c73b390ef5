"""Chronofed's client as a Flower ClientApp.

What belongs to the node is set where the node is started, with ``--node-config``:

============  ==============================================================================
``client``    which client this is, from 0 (or Flower's ``partition-id``)
``state``     folder where it keeps its memory (default ``~/.local/state/chronofed``)
``data``      folder of data files
``source``    a TOML file whose table ``[source]`` says where the client's own data are;
              without it the client takes its share of the specification's data, as a simulation would
``budget``    most megabytes of past data that it keeps; the oldest go first
``max_age``   how long it keeps past data, such as ``365 days``
============  ==============================================================================

What is wrong is said in one line, where the node runs and in the server's ``events.jsonl``; what is wrong with
a row of the client's own data is said where the node runs only.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chronofed.errors import ChronofedError, SpecError
from chronofed.experiments.own import load_source
from chronofed.experiments.reader import read
from chronofed.experiments.spec import Experiment, load_settings
from chronofed.flower.grid import flower, from_content, to_content
from chronofed.flower.settings import Node
from chronofed.flower.station import Own, Share, Station, Supply
from chronofed.flower.wire import Letter, fingerprint, write_refusal

Settings = Mapping[str, bool | int | float | str]
UNKNOWN = -1
"""The number of a client that does not say which it is."""
FLOWERS_OWN = ("partition-id", "num-partitions")  # what its simulation tells a node


def client_app(beside: str | Path) -> Any:  # noqa: ANN401
    """The ClientApp of an app's folder.

    Args:
        beside: A file in the folder of the specification, such as ``__file__``.

    Returns:
        What ``[tool.flwr.app.components]`` names.
    """
    folder = Path(beside).resolve().parent
    app = flower("flwr.clientapp").ClientApp()

    def answer(message: Any, context: Any) -> Any:  # noqa: ANN401
        letter = from_content(message.content)
        reply = answered(letter, context.node_config, context.run_config, folder)
        return flower("flwr.app").Message(to_content(reply), reply_to=message)

    app.query()(answer)
    app.train()(answer)
    return app


def answered(letter: Letter, node: Settings, run: Settings, folder: Path) -> Letter:
    """A client's answer to a letter."""
    try:
        return station_of(node, run, folder).answer(letter)
    except ChronofedError as error:  # of the node's settings
        complain(str(error))
        return write_refusal("", UNKNOWN, str(error))


def complain(line: str) -> None:
    """Say in the node's log why there is no answer."""
    sys.stderr.write(f"chronofed: {line}\n")


def station_of(node: Settings, run: Settings, folder: Path) -> Station:
    """The client that a node's settings describe.

    Raises:
        SpecError: If the node does not say which client it is, or says something that nobody understands.
    """
    table = {name: value for name, value in node.items() if name not in FLOWERS_OWN}
    number = table.setdefault("client", node.get("partition-id", UNKNOWN))
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        msg = "this node does not say which client it is: start it with --node-config 'client=0'"
        raise SpecError(msg)
    own = read(table, Node, "node-config")
    supply: Supply = Share(Path(own.data).expanduser() if own.data else None, folder)
    if own.source:
        supply = Own(load_source(Path(own.source).expanduser()))
    state = Path(own.state).expanduser()
    return Station(own.client, experiments(run, folder), state, supply, own.vault, complain)


def experiments(run: Settings, folder: Path) -> dict[str, Experiment]:
    """The specifications of an app, by fingerprint of their methods; their data may be on the server only.

    Raises:
        SpecError: If there is none.
    """
    pattern = str(run.get("spec", "spec.toml"))
    found = [load_settings(path) for path in sorted(folder.glob(pattern))]
    if not found:
        raise SpecError(f"the app has no specification {pattern} in {folder}")
    return {fingerprint(experiment): experiment for experiment in found}
