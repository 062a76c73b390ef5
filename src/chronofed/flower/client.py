"""Chronofed's client as a Flower ClientApp.

What belongs to the node is set where the node is started, with ``--node-config``:

============  ==============================================================================
``client``    which client this is, from 0 (or Flower's ``partition-id``)
``state``     folder where it keeps its memory (default ``~/.local/state/chronofed``)
``data``      folder of data files
``source``    a TOML file whose table ``[source]`` says where the client's own data are;
              without it the client takes its share of the specification's data, as a simulation would
============  ==============================================================================
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chronofed.errors import SpecError
from chronofed.experiments.own import load_source
from chronofed.experiments.spec import Experiment, load_settings
from chronofed.flower.grid import flower, from_content, to_content
from chronofed.flower.station import Own, Share, Station
from chronofed.flower.wire import fingerprint

Settings = Mapping[str, bool | int | float | str]


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
        station = station_of(context.node_config, context.run_config, folder)
        content = to_content(station.answer(from_content(message.content)))
        return flower("flwr.app").Message(content, reply_to=message)

    app.query()(answer)
    app.train()(answer)
    return app


def station_of(node: Settings, run: Settings, folder: Path) -> Station:
    """The client that a node's settings describe.

    Raises:
        SpecError: If the node does not say which client it is.
    """
    number = node.get("client", node.get("partition-id"))
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        msg = "this node does not say which client it is: start it with --node-config 'client=0'"
        raise SpecError(msg)
    state = Path(str(node.get("state", "~/.local/state/chronofed"))).expanduser()
    data = Path(str(node["data"])).expanduser() if "data" in node else None
    supply = (
        Own(load_source(Path(str(node["source"])).expanduser()))
        if "source" in node
        else Share(data, folder)
    )
    return Station(number, experiments(run, folder), state, supply)


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
