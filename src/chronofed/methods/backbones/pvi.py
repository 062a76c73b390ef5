"""Partitioned variational inference."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
import torch
from torch import Tensor

from chronofed.core.config import Positive
from chronofed.core.types import Record, Vector
from chronofed.methods.backbones.base import Backbone, Uploads
from chronofed.methods.local import Local, one_client, with_sources
from chronofed.methods.memories.curvature import Curvature, Fisher, MeanLoss

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
# The natural parameters of a Gaussian: its precision, and precision times mean.
NATURAL = ("precision", "pull")


class Pvi(Backbone, tag="pvi"):
    r"""Partitioned variational inference with Gaussian factors, one for every data set of every client.

    The model is the mean of :math:`q(w) \propto N(w; 0, 1/\lambda) \prod_{i,\kappa} t_{i\kappa}(w)`. The
    factors have diagonal precisions :math:`L_{i\kappa}` and pulls :math:`\eta_{i\kappa}`, precision times
    mean; of a product both add up. Client *i* with the *n* samples of data set :math:`\kappa` takes its factor
    out and trains against the rest, the cavity :math:`L_c, \eta_c`:

    .. math::
        \hat w &\approx \arg\min_w\; n f_i(w) + \tfrac12 w^\top L_c w - \eta_c^\top w, \qquad
        L' = n\, h_i(\hat w)_+, \quad \eta' = (L_c + L')\, \hat w - \eta_c, \\
        L_{i\kappa} &\gets (1 - \rho) L_{i\kappa} + \rho L', \qquad
        \eta_{i\kappa} \gets (1 - \rho)\, \eta_{i\kappa} + \rho\, \eta'

    This is the Laplace form of the publication's Gaussian mean field; its sampled bound is not here. A data
    set that comes back replaces its factor, and one that left stays in the product. So it is a backbone and a
    memory in one, and another memory counts the past twice. Where the loss is a diagonal quadratic, one round
    with everybody gives the exact posterior, however samples are split over clients and time. Where it stops,
    the gradient of all losses and the prior is 0. Factors multiply, so clients are not weighted by
    ``average``. With one client it is variational continual learning in Laplace form.

    Precisions are never below 0, and that of a cavity never below the prior's. Local steps take the quadratic
    term implicitly, :math:`d = (g + (L_c w - \eta_c)/n) / (1 + \eta_l L_c/n)`, so that they are stable for any
    number of factors.

    Three models travel to a client and two back. A client keeps two models for every data set, and the server
    two for every client: so a lost answer, or a client that starts anew, counts nothing twice. The factors of
    a deleted client leave the product at once. A client with a deleted sample starts anew without factors,
    also of its other data sets, and what the server has of it is replaced at its next visit. The batched
    engine does not serve it, nor does ``private``, which hides who sent what.

    Attributes:
        prior: Precision :math:`\lambda` of the prior, per parameter. Losses count as sums over samples.
        damping: Share :math:`\rho` of a new factor. Many clients at once with losses that are far from
            quadratic may need about one over their number.
        curvature: Estimator of the diagonal :math:`h_i`; negative estimates count as 0.
        server_lr: Share of the way to the mean of *q*.
    """

    stateful: ClassVar[bool] = True
    names_clients: ClassVar[bool] = True
    upload_keys: ClassVar[tuple[str, ...]] = NATURAL
    nonnegative: ClassVar[tuple[str, ...]] = ("precision",)
    curvatures: ClassVar[tuple[str, ...]] = NATURAL
    reference: ClassVar[str] = (
        "Bui et al. (2018), Partitioned Variational Inference: A Unified Framework Encompassing Federated and "
        "Continual Learning"
    )

    prior: Positive = 1.0
    damping: Share = 1.0
    curvature: Curvature = Fisher()

    def init_server(self, params: Vector, clients: int) -> Record:
        """Start without factors of any client."""
        own = {f"pvi_{name}": params.new_zeros(clients, len(params)) for name in NATURAL}
        return {**super().init_server(params, clients), **own}

    def enrol(self, server: Record, clients: int) -> Record:
        """Make room for clients that joined."""
        more = max(0, clients - len(server["pvi_pull"]))
        own = {n: torch.cat([t, t.new_zeros(more, t.shape[1])]) for n, t in _tables(server).items()}
        return {**server, **own}

    def forget(self, server: Record, clients: Sequence[int]) -> Record:
        """Take the factors of these clients out of the product."""
        tables = {name: table.clone() for name, table in _tables(server).items()}
        gone = [client for client in clients if client < len(server["pvi_pull"])]
        if not any(table[gone].any() for table in tables.values()):
            return server
        for table in tables.values():
            table[gone] = 0
        return self._mean({**server, **tables}, server["params"])

    def init_client(self, params: Vector) -> Record:
        """Start without data sets."""
        none = torch.empty(0, dtype=torch.int64)
        factors = {name: params.new_empty(0, len(params)) for name in NATURAL}
        return {"sources": none, "keys": none.clone(), **factors}

    def broadcast(self, server: Record) -> Record:
        """Add the product of all factors, from which :meth:`address` takes a client's own."""
        return {**server, **self._product(server)}

    def address(self, sent: Record, client: int) -> Record:
        """Send the model, and the product of the prior and all factors of other clients."""
        own = slice(client, client + 1)
        rest = {n: sent[n] - sent[f"pvi_{n}"][own].double().sum(0) for n in NATURAL}
        # Less can only be rounding.
        rest["precision"].clamp_(min=self.prior)
        return {"params": sent["params"], **{n: t.to(sent["params"]) for n, t in rest.items()}}

    def start(self, server: Record, client: Record, local: Local) -> Vector:
        """Begin at the server's model; note the cavity, which holds the factors of other data sets."""
        others = client["keys"] != local.key
        for name in NATURAL:
            local.scratch[f"pvi_{name}"] = server[name] + client[name][others].sum(0)
        return server["params"]

    def gradient(self, params: Vector, server: Record, local: Local) -> Vector:
        """Add the gradient of the cavity, for an implicit step."""
        precision, pull = (local.scratch[f"pvi_{name}"] for name in NATURAL)
        n = len(local.samples)
        gradient = local.stochastic_gradient(params).add_(precision * params - pull, alpha=1 / n)
        return gradient.div_(precision * (local.train.lr / n) + 1)

    def finish(
        self, params: Vector, server: Record, client: Record, local: Local
    ) -> tuple[Record, Record]:
        """Replace the factor of the present data set; send the product of the client's factors."""
        factor, same = self._factor(params, local), client["keys"] == local.key
        state = {"keys": torch.cat([client["keys"][~same], torch.full((1,), local.key)])}
        for name, new in zip(NATURAL, factor, strict=True):
            damped = new.mul_(self.damping).add_(client[name][same].sum(0), alpha=1 - self.damping)
            state[name] = torch.cat([client[name][~same], damped[None]])
        upload = {name: state[name].sum(0) for name in NATURAL}
        return upload, {**state, "sources": with_sources(client["sources"], local)}

    def aggregate(self, server: Record, uploads: Uploads) -> Record:
        """Replace what clients sent before, and move to the mean of the product."""
        tables = {name: table.clone() for name, table in _tables(server).items()}
        for upload in uploads:
            for name in NATURAL:
                tables[f"pvi_{name}"][upload.client] = upload[1][name]
        # Others than clients, such as compression, may make one negative.
        tables["pvi_precision"].clamp_(min=0)
        return self._mean({**server, **tables}, server["params"])

    def _factor(self, params: Vector, local: Local) -> tuple[Vector, Vector]:
        """Compute precision and pull of the quotient of the new posterior and the cavity."""
        one = one_client(local)
        loss = MeanLoss(one.objective, params, one.samples, (slice(0, len(params)),))
        _, diagonal = self.curvature.expand(loss, one.generator)
        precision = diagonal.clamp(min=0).mul_(len(one.samples))
        cavity = local.scratch["pvi_precision"] + precision
        return precision, cavity.mul_(params).sub_(local.scratch["pvi_pull"])

    def _product(self, server: Record) -> dict[str, Tensor]:
        """Multiply the prior and all factors, in double precision: later a client's own is taken out again."""
        found = {n: server[f"pvi_{n}"].sum(0, dtype=torch.float64) for n in NATURAL}
        found["precision"].add_(self.prior)
        return found

    def _mean(self, server: Record, params: Vector) -> Record:
        product = self._product(server)
        mean = (product["pull"] / product["precision"]).to(params)
        return {**server, "params": torch.lerp(params, mean, self.server_lr)}


def _tables(server: Record) -> dict[str, Tensor]:
    """Return the products of every client's factors, ``(clients, d)``."""
    return {name: server[name] for name in (f"pvi_{n}" for n in NATURAL)}
