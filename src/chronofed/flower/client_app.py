"""Chronofed's client as a Flower ClientApp.

Settings of the node are given with ``--node-config`` when it is started:

===============  ==============================================================================
``client``       number of the client, from 0 (or Flower's ``partition-id``)
``others``       numbers of further clients of this machine, with commas between them
``state``        folder of its client stores (default ``~/.local/state/chronofed``)
``data``         folder of data files
``source``       TOML file whose table ``[source]`` describes the client's own data; by default
                 the client uses its part of the specification's data, as in a simulation;
                 ``{client}`` stands for the client's number
``limit_mb``     maximum megabytes of past data to keep; the oldest are removed first
``max_age``      maximum age of past data to keep, with its unit, such as ``365 days``
``max_steps``    maximum number of local steps in a round (default 100,000)
``max_round_s``  maximum seconds that one order may take (default 86,400)
===============  ==============================================================================

Errors are one line in the node's log and in the server's ``events.jsonl``. A problem with a row of the client's
own data is logged on the node only.

Flower starts a process for every message. Beside a :mod:`~chronofed.flower.worker` that process only hands the
message on, and torch is not imported.
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronofed.core.errors import ChronofedError, DataError, SpecError
from chronofed.core.paths import expand
from chronofed.flower.messages import Message, method_fingerprint, write_error
from chronofed.flower.processes import exit_with_flower
from chronofed.flower.transport import from_content, import_flower, to_content
from chronofed.flower.worker import ADDRESS, hand_over

if TYPE_CHECKING:
    from chronofed.flower.node import ClientNode, DataProvider
    from chronofed.runs.spec import Experiment

UserConfig = Mapping[str, bool | int | float | str]
"""Flower's type of ``--node-config`` and ``--run-config``."""
UNKNOWN_CLIENT = -1
"""Number in the reply of a node that is not told which client it is."""
FLOWER_KEYS = ("partition-id", "num-partitions")
"""Keys that Flower's simulation adds to a node's settings."""

logger = logging.getLogger(__name__)


def client_app(file: str | Path) -> Any:
    """Make the ClientApp for an app's folder.

    Args:
        file: A file in the folder of the specification, such as ``__file__``.

    Returns:
        The object that ``[tool.flwr.app.components]`` names.
    """
    log_to_stderr()
    if "--parent-pid" in sys.argv:
        # Flower asks an app process to end with its node, but one that was forked may wait for ever.
        exit_with_flower()
    folder = Path(file).resolve().parent
    app = import_flower("flwr.clientapp").ClientApp()

    def handle(message: Any, context: Any) -> Any:
        request, node, run = from_content(message.content), context.node_config, context.run_config
        worker = os.environ.get(ADDRESS)
        if worker is None:
            reply = answer(request, node, run, folder)
        else:
            reply = _handed_over(Path(worker), request, node, run, folder)
        return import_flower("flwr.app").Message(to_content(reply), reply_to=message)

    app.query()(handle)
    app.train()(handle)
    return app


def _handed_over(
    worker: Path, message: Message, node: UserConfig, run: UserConfig, folder: Path
) -> Message:
    try:
        return hand_over(worker, message, node, run, folder)
    except ChronofedError as error:
        logger.warning("%s", error)
        return write_error("", UNKNOWN_CLIENT, str(error))


def log_to_stderr() -> None:
    """Print the library's warnings to standard error, which is the node's log; once, however often called."""
    library = logging.getLogger("chronofed")
    if not any(handler.get_name() == __name__ for handler in library.handlers):
        handler = logging.StreamHandler()
        handler.set_name(__name__)
        handler.setFormatter(logging.Formatter("chronofed: %(message)s"))
        library.addHandler(handler)


def answer(
    message: Message, node_config: UserConfig, run_config: UserConfig, folder: Path
) -> Message:
    """Answer a message; wrong settings of the node become a reply of one line, too."""
    try:
        return make_node(node_config, run_config, folder).answer(message)
    except ChronofedError as error:
        cause = f" ({error.__cause__})" if isinstance(error, DataError) else ""
        logger.warning("%s%s", error, cause)
        return write_error("", UNKNOWN_CLIENT, str(error))


def make_node(node_config: UserConfig, run_config: UserConfig, folder: Path) -> "ClientNode":
    """Make the client that a node's settings describe.

    Raises:
        SpecError: If the settings do not say which client it is, or cannot be used.
    """
    from chronofed.core.spec_io import from_table
    from chronofed.flower.node import ClientNode, ScenarioData, SourceData, SourceFiles, own_source
    from chronofed.flower.settings import Node

    table = {name: value for name, value in node_config.items() if name not in FLOWER_KEYS}
    number = table.setdefault("client", node_config.get("partition-id", UNKNOWN_CLIENT))
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        msg = "this node does not say which client it is: start it with --node-config 'client=0'"
        raise SpecError(msg)
    others = _numbers(table.pop("others", ""))
    node = from_table(table, Node, "node-config")
    data = expand(node.data) if node.data else None
    provider: DataProvider = ScenarioData(data, folder)
    if node.source:
        several = "{client}" in node.source
        provider = (
            SourceFiles(node.source)
            if several
            else SourceData(own_source(node.client, node.source))
        )
    state = expand(node.state)
    known = experiments(run_config, folder)
    return ClientNode(
        node.client,
        known,
        state,
        provider,
        node.client_store,
        limits=node.order_limits,
        others=others,
    )


def _numbers(text: bool | int | float | str) -> tuple[int, ...]:
    """Read numbers of clients.

    Raises:
        SpecError: If they are none.
    """
    words = [word.strip() for word in str(text).split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise SpecError(f"node-config.others: expected numbers such as '1,2,5', not {text!r}")
    return tuple(map(int, words))


def experiments(run_config: UserConfig, folder: Path) -> "dict[str, Experiment]":
    """Read the specifications of an app, by fingerprint; their data files may be on the server only.

    Raises:
        SpecError: If there is none.
    """
    from chronofed.runs.load_spec import load_settings

    pattern = str(run_config.get("spec", "spec.toml"))
    found = [load_settings(path) for path in sorted(folder.glob(pattern))]
    if not found:
        raise SpecError(f"the app has no specification {pattern} in {folder}")
    return {method_fingerprint(experiment): experiment for experiment in found}
