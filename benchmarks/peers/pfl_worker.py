"""The pfl-research peer itself. Importing pfl joins its group, so ``pfl_research.py`` sets that up before."""

from collections.abc import Iterator
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional
from torch_models import Probe, arrays, build, tensors
from workload import Workload, check, clients, cohort


class Model(nn.Module):
    """A module with the two methods that pfl calls."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen = [0, 0]  # steps and samples

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of a batch."""
        self.seen[0] += 1
        self.seen[1] += len(labels)
        return functional.cross_entropy(self.inner(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """Needed in pfl's very first round only, which it evaluates whatever one asks for."""
        with torch.no_grad():
            loss = functional.cross_entropy(self.inner(images), labels, reduction="sum").item()
        return {"loss": Weighted(loss, len(labels))}


class Population(FederatedDatasetBase):
    """All clients, resident; a cohort is that of the workload, dealt out to the processes in turn.

    pfl's ``FederatedDataset`` over two processes draws eight users for a cohort of seven, one for each
    process at a time, and the processes drift apart; its sorted sampler does not, but keeps a process of its
    own for drawing.
    """

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.work = work
        self.rounds = 0
        pairs = tensors(clients(work))
        self.users = [PyTorchTensorDataset(pair, user_id=str(n)) for n, pair in enumerate(pairs)]

    def __next__(self) -> tuple[PyTorchTensorDataset, int]:
        raise NotImplementedError("pfl asks for cohorts")

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[PyTorchTensorDataset, int]]:
        """This process's part of the next round's cohort."""
        chosen = cohort(self.work, self.rounds)
        assert cohort_size == len(chosen)
        self.rounds += 1
        group = pytorch_ops.distributed
        for client in chosen[group.global_rank :: group.world_size]:
            yield self.users[client], client


class Peer:
    """pfl's algorithm, run one central iteration at a time."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.module = Model(build(work))
        central = torch.optim.SGD(self.module.parameters(), lr=1.0)
        self.model = PyTorchModel(self.module, torch.optim.SGD, central)
        population = Population(work)
        self.backend = SimulatedBackend(population, population, [WeightByDatapoints()])
        self.algorithm = FederatedAveraging()
        self.train: Any = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
        )
        self.done = 0

    def rounds(self, number: int) -> None:
        """Go on from where the algorithm is; nothing is evaluated or printed."""
        self.done += number
        wanted = NNAlgorithmParams(
            central_num_iterations=self.done,
            evaluation_frequency=1_000_000_000,
            train_cohort_size=self.work.cohort,
            val_cohort_size=0,
        )
        self.model = self.algorithm.run(
            wanted, self.backend, self.model, self.train, send_metrics_to_platform=False
        )


def prepared(work: Workload) -> tuple[Peer, dict[str, object]]:
    """Checked against the reference and warmed up by two rounds, in step with the other process."""
    torch.set_num_threads(1)
    peer = Peer(work)
    measure = Probe(clients(work))
    before = measure(peer.module.inner)
    peer.rounds(1)
    error = check(work, arrays(peer.module))
    seen = torch.tensor(peer.module.seen, dtype=torch.float32)
    steps, samples = (int(x) // work.cohort for x in pytorch_ops.distributed.all_reduce([seen])[0])
    assert (steps, samples) == (work.steps, work.samples), (steps, samples)
    peer.rounds(2)
    after = measure(peer.module.inner)
    assert after < before, (before, after)
    facts = {"steps": steps, "samples": samples, "error": error, "loss": [before, after]}
    return peer, {"order": "as stored", **facts}


def processes() -> int:
    """How many share the work."""
    return int(pytorch_ops.distributed.world_size)


def leads() -> bool:
    """Whether this is the process that speaks with the driver."""
    return bool(pytorch_ops.distributed.global_rank == 0)
