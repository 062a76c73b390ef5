"""FedAvg as one writes it by hand: ``copy.deepcopy`` and a ``DataLoader`` for every client, one torch thread.

python naive.py A             # the contestant
python naive.py --reference   # write reference.json anew, by a plainer loop
"""

import argparse
import copy
import json

import torch
from protocol import Channel
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch_models import Probe, arrays, build, tensors
from workload import REFERENCE, WORKLOADS, Workload, check, clients, cohort, fingerprint


class Naive:
    """A server with all its clients."""

    def __init__(self, work: Workload, dtype: torch.dtype = torch.float32) -> None:
        data = clients(work)
        self.work = work
        self.model = build(work).to(dtype)
        self.data = [TensorDataset(images.to(dtype), labels) for images, labels in tensors(data)]
        self.probe = Probe(data)
        self.rounds = 0
        self.steps = 0
        self.samples = 0

    def round(self, shuffle: bool = True) -> None:
        """One round of FedAvg; buffers (BatchNorm) are averaged like parameters."""
        chosen = cohort(self.work, self.rounds)
        total = sum(len(self.data[client]) for client in chosen)
        mean: dict[str, Tensor] = {}
        for client in chosen:
            weight = len(self.data[client]) / total
            for name, value in self.train(self.data[client], shuffle).items():
                part = value * weight
                mean[name] = mean[name] + part if name in mean else part
        self.model.load_state_dict(mean)
        self.rounds += 1

    def train(self, data: TensorDataset, shuffle: bool) -> dict[str, Tensor]:
        """One local epoch on a copy of the model."""
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.work.lr)
        for images, labels in DataLoader(data, self.work.batch, shuffle=shuffle):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            self.steps += 1
            self.samples += len(labels)
        return model.state_dict()


def prepared(work: Workload) -> tuple[Naive, dict[str, object]]:
    """A contestant that was checked against the reference and warmed up by two rounds."""
    naive = Naive(work)
    before = naive.probe(naive.model)
    naive.round(shuffle=False)
    error = check(work, arrays(naive.model))
    steps, samples = naive.steps // work.cohort, naive.samples // work.cohort
    assert (steps, samples) == (work.steps, work.samples), (steps, samples)
    naive.round()
    naive.round()
    after = naive.probe(naive.model)
    assert after < before, (before, after)
    facts = {"steps": steps, "samples": samples, "error": error, "loss": [before, after]}
    return naive, {"order": "shuffled", **facts}


def reference(work: Workload) -> nn.Module:
    """Round 0 in stored order and float64, with no optimizer, no loader and no copy of a module."""
    model, data, chosen = build(work).double(), tensors(clients(work)), cohort(work, 0)
    params = list(model.parameters())
    first = [param.detach().clone() for param in params]
    total = [torch.zeros_like(param) for param in params]
    for client in chosen:
        images, labels = data[client][0].double(), data[client][1]
        _restore(params, first)
        for start in range(0, work.samples, work.batch):
            batch = slice(start, start + work.batch)
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            with torch.no_grad():
                for param, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
                    param -= work.lr * grad
        for part, param in zip(total, params, strict=True):
            part += param.detach() / len(chosen)
    _restore(params, total)
    return model


def write_reference() -> None:
    """Write reference.json, after the loop with loader and optimizer has come to the same in float64."""
    found = {}
    for name, work in WORKLOADS.items():
        found[name] = fingerprint(work, arrays(reference(work)))
        naive = Naive(work, torch.float64)
        naive.round(shuffle=False)
        other = fingerprint(work, arrays(naive.model))
        assert max(abs(a - b) for a, b in zip(found[name], other, strict=True)) < 1e-9, name
    REFERENCE.write_text(json.dumps(found, indent=1) + "\n")


@torch.no_grad()
def _restore(params: list[nn.Parameter], values: list[Tensor]) -> None:
    for param, value in zip(params, values, strict=True):
        param.copy_(value)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("workload", choices=sorted(WORKLOADS), nargs="?", default="A")
    options.add_argument("--reference", action="store_true")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if chosen.reference:
        write_reference()
        return
    channel = Channel()
    naive, facts = prepared(WORKLOADS[chosen.workload])

    def rounds(number: int) -> None:
        for _ in range(number):
            naive.round()

    channel.serve(rounds, peer="naive", workload=chosen.workload, **facts)


if __name__ == "__main__":
    main()
