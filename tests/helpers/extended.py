"""A tiny part for every extension of the contracts, written outside the package as a user would write it."""

from typing import ClassVar

import torch

from chronofed import (
    Backbone,
    BetaRatio,
    CoreSet,
    Detector,
    LossJump,
    Memory,
    Method,
    Surrogate,
    Teacher,
    weighted_mean,
)
from chronofed.core.stacking import stacked
from chronofed.core.types import Batch
from chronofed.methods.memories import timeline


class OwnStart(Backbone):
    """Begins halfway between the server's model and the client's own last one."""

    stateful: ClassVar = True

    def init_client(self, params):
        return {"own": params.clone()}

    def start(self, server, client, local):
        return (server["params"] + client["own"]) / 2

    def finish(self, params, server, client, local):
        return {"delta": params - server["params"]}, {"own": params.clone()}


class StackedStart(OwnStart):
    """The same for many clients at once."""

    @stacked
    def start(self, server, client, local):
        return super().start(server, client, local)

    @stacked
    def finish(self, params, server, client, local):
        return super().finish(params, server, client, local)


class Tailored(Backbone):
    """Sends every client a model of its own, which follows that client's updates."""

    def init_server(self, params, clients):
        return {"params": params.clone(), "models": params.repeat(clients, 1)}

    def address(self, sent, client):
        return {"params": (sent["params"] + sent["models"][client]) / 2}

    def aggregate(self, server, uploads):
        models = server["models"].clone()
        for upload in uploads:
            models[upload.client] += upload[1]["delta"]
        return {**super().aggregate(server, uploads), "models": models}


class Tracing(Backbone):
    """Counts a client's data sets by their keys, and takes notes during its steps."""

    stateful: ClassVar = True

    def init_client(self, params):
        none = torch.empty(0, dtype=torch.int64)
        return {"key": torch.tensor(-1), "seen": torch.tensor(0.0), "sources": none}

    def gradient(self, params, server, local):
        grad = local.stochastic_gradient(params)
        local.scratch["path"] = local.scratch.get("path", torch.zeros(())) + grad.norm()
        return grad

    def finish(self, params, server, client, local):
        new = int(client["key"]) != local.key
        seen, key = client["seen"] + new, torch.tensor(local.key)
        delta = (params - server["params"]) * (1 + 0.01 * seen) / (1 + 0.01 * local.scratch["path"])
        return {"delta": delta}, {"key": key, "seen": seen, "sources": local.samples.rows}


class Graded(Backbone):
    """Weighs clients by their losses at the server's model; only matrices are trained."""

    upload_keys: ClassVar = ("delta", "loss")
    nonnegative: ClassVar = ("loss",)

    def finish(self, params, server, client, local):
        objective = local.objective
        losses = objective.losses(server["params"], Batch.mean(local.samples))
        delta = params - server["params"]
        for name, shape in objective.shapes.items():
            delta[objective.names[name]] *= len(shape) == 2
        return {"delta": delta, "loss": losses.double().mean()}, client

    def aggregate(self, server, uploads):
        weighted = [(w * float(upload["loss"]), upload) for w, upload in uploads]
        return {"params": server["params"] + weighted_mean(weighted, "delta")}


class Balanced(Backbone):
    """Balanced softmax: the logarithm of the client's class counts is added to the logits."""

    def gradient(self, params, server, local):
        counts = torch.bincount(local.samples.y, minlength=3)
        return local.stochastic_gradient(params, offset=counts.double().log())


class Polished(Backbone):
    """Distils the clients' mean logits into the mean model, on samples of the server."""

    refines: ClassVar = True
    needs_samples: ClassVar = True

    def refine(self, server, uploads, bench):
        w, x = server["params"].clone(), bench.samples
        models = [bench.before["params"] + upload["delta"] for _, upload in uploads]
        for _ in range(3):
            some = x[torch.randint(len(x), (8,), generator=bench.generator)]
            logits = torch.stack([bench.objective.logits(m, some) for m in models]).mean(0)
            batch = Batch(some, torch.zeros(8, dtype=torch.int64), torch.full((8,), 1 / 8).double())
            w -= 0.5 * bench.objective.distilled(w, batch, logits, temperature=1.0)
        return {**server, "params": w}


class Watched(Backbone):
    """A detector on the client follows its losses; after a change its update counts double."""

    stateful: ClassVar = True
    detector: Detector = LossJump(0.01)

    def init_client(self, params):
        return {**self.detector.init(), "changes": torch.tensor(0.0)}

    def finish(self, params, server, client, local):
        losses = local.objective.losses(server["params"], Batch.mean(local.samples))
        state = {name: t for name, t in client.items() if name != "changes"}
        state, change = self.detector.update(state, torch.exp(-losses))
        delta = (params - server["params"]) * (1 if change is None else 2)
        changes = client["changes"] + (change is not None)
        return {"delta": delta}, {**state, "changes": changes}


class Distilling(Memory):
    """The last model of every past data set is a teacher, and so is the server's model."""

    location: ClassVar = "client"
    teaches: ClassVar = True

    def observe(self, objective, params, samples, generator):
        kept = {"params": params.clone(), "buffers": objective.buffers}
        return kept if samples.rows is None else {**kept, "sources": samples.rows}

    def recall(self, kept, weights, moment):
        past = self.recalled(kept, moment)
        *shares, _ = weights(timeline(past, moment)).tolist()
        if not sum(shares):
            return Surrogate()
        teachers = [
            Teacher(item.record["params"], share, buffers=item.record["buffers"])
            for item, share in zip(past, shares, strict=True)
        ]
        classes = torch.tensor([0, 2])
        shared = Teacher(None, 0.5, temperature=1.0, classes=classes, form="sigmoid")
        return Surrogate(teachers=(*teachers, shared))

    def approximate(self, objective, params, item):
        return (slice(0, len(params)),), params - item.record["params"]


class ServerDistilling(Distilling):
    """The same on the server, so that teachers travel; it keeps four of them."""

    location: ClassVar = "server"

    def observe(self, objective, params, samples, generator):
        return {"params": params.clone(), "buffers": objective.buffers}

    def retain(self, kept, new, generator):
        return super().retain(kept, new, generator)[-4:]


EXTENDED = [
    Method(OwnStart()),
    Method(StackedStart(), CoreSet(size=5)),
    Method(Tailored(), CoreSet(size=5)),
    Method(Tracing()),
    Method(Graded()),
    Method(Balanced()),
    Method(Polished()),
    Method(Watched()),
    Method(Watched(detector=BetaRatio(window=5, sensitivity=0.0, threshold=0.0))),
    Method(memory=Distilling()),
    Method(memory=ServerDistilling()),
]


def label(method: Method) -> str:
    own = (method.backbone, method.memory)
    names = [type(part).__name__ for part in own if type(part).__module__ == __name__]
    return "-".join(names) + "-" * (method == EXTENDED[8])
