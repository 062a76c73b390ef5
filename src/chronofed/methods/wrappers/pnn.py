"""Progressive networks."""

import re
from typing import ClassVar

import torch

from chronofed.core.types import Objective, Record, Vector
from chronofed.methods.local import ClientLocal, Local, one_client
from chronofed.methods.wrappers.base import ClientWrapper
from chronofed.methods.wrappers.view import ScaledObjective, with_objective

GATE = "gate"
COLUMN = re.compile(r"columns\.(\d+)\.")


class Pnn(ClientWrapper, tag="pnn"):
    r"""Progressive networks: every data set trains a column of its own, and earlier ones are frozen.

    It needs the model ``progressive``, whose column *k* computes

    .. math:: h_i^k = \mathrm{relu}\Big(W_i^k h_{i-1}^k + \sum_{j<k} U_i^{k:j} h_{i-1}^j\Big).

    The first data set of a client trains column 0, the second column 1, and so on; the last column takes all
    that are left. A data set that comes back while its column is not the newest trains nothing. The gate of
    the model chooses the column whose outputs count: a client sets it to its own, and the server has the mean
    of the clients, so that columns are mixed where clients differ.

    Columns are counted by client. If all clients change their data together, as in a class-incremental stream,
    this is the publication's method in a federation; a client that joins late goes on with the first column.
    The publication knows the task at test time. Measures of this library do not: they use the server's gate, so
    they show the newest column, also on older data sets.

    A client keeps the numbers of its data sets. All columns travel, and their number is fixed: there is no
    growth to save. A server's optimiser (``fedopt`` around it) moves frozen columns, and ``cwr`` around it
    takes a wrong layer for the last. With another model it is the inner backbone. The batched engine does not
    serve it. Columns of ResNets are not offered: parameters grow with the square of the number of columns.
    Connections are the sum above; the publication's adapters are not offered either.

    Attributes:
        backbone: The inner backbone.
        server_lr: Unused: set that of the inner backbone.
    """

    stateful: ClassVar[bool] = True
    reference: ClassVar[str] = "Rusu et al. (2016), Progressive Neural Networks"

    def init_client(self, params: Vector) -> Record:
        """Start without data sets."""
        none = torch.empty(0, dtype=torch.int64)
        return {**self.backbone.init_client(params), "pnn_keys": none}

    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """As the inner backbone, with the gate at the client's column."""
        start = self.backbone.start(server, client, local)
        number = _columns(local.objective)
        if not number:
            return start
        keys = _with_key(client["pnn_keys"], local.key).tolist()
        column = min(keys.index(local.key), number - 1)
        newest = min(len(keys), number) - 1
        start = start.clone()
        gate = start[local.objective.names[GATE]]
        gate.zero_()[column] = 1.0
        trained = _mask(local.objective, column, start) * float(column == newest)
        local.scratch.update(pnn_trained=trained, pnn_frozen=start * (1 - trained))
        return start

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """As the inner backbone, of the newest column alone."""
        return self.backbone.gradient(params, server, _newest(local))

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """As the inner backbone, with frozen columns as they were; remember the data set."""
        newest = _newest(local)
        if isinstance(newest.objective, ScaledObjective):
            params = newest.objective.point(params)
        upload, state = self.backbone.finish(params, server, client, newest)
        return upload, {**state, "pnn_keys": _with_key(client["pnn_keys"], local.key)}


def _newest(local: Local) -> ClientLocal:
    """Return the client's problem in which all but the newest column is held."""
    notes = local.scratch
    if "pnn_trained" not in notes:
        return one_client(local)
    view = ScaledObjective(local.objective, notes["pnn_trained"], notes["pnn_frozen"])
    return with_objective(local, view)


def _columns(objective: Objective) -> int:
    """Return the number of columns of a progressive model; 0 for any other."""
    found = [int(match[1]) for match in map(COLUMN.match, objective.names) if match]
    return max(found) + 1 if found and GATE in objective.names else 0


def _mask(objective: Objective, column: int, like: Vector) -> Vector:
    mask = torch.zeros_like(like)
    for name, span in objective.names.items():
        mask[span] = float(name.startswith(f"columns.{column}."))
    return mask


def _with_key(keys: Vector, key: int) -> Vector:
    return keys if key in keys.tolist() else torch.cat([keys, torch.tensor([key])])
