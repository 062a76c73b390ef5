"""FedAvg by FedJAX: its own algorithm, with ``jax.jit`` (its default) or ``jax.pmap`` over two CPU devices.

    python fedjax_peer.py A [--backend jit | pmap] [--batches exact | own]

FedJAX's training batches are always full: it fills the last batch of 238 samples up to 32 with further
samples and so trains on 256 (and on 64 of 50). ``exact`` (unless told) gives its algorithm the batches of the
other peers. With pmap, an odd cohort (A, C, D) is filled up by an empty client, which needs batches of one
shape: there it is FedJAX's ``own`` whatever one says, more work a round, and without a reference to compare
with. XLA itself uses all cores for one step, so ``jit`` is no single-threaded contestant.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from protocol import Channel
from workload import WORKLOADS, Clients, Workload, check, clients, cohort, initial, probe, scaled

if __name__ == "__main__":
    # Before jax is imported: it reads its flags then.
    OPTIONS = argparse.ArgumentParser(description=__doc__)
    OPTIONS.add_argument("workload", choices=[name for name in WORKLOADS if name != "R"])
    OPTIONS.add_argument("--backend", choices=["jit", "pmap"], default="jit")
    OPTIONS.add_argument("--batches", choices=["exact", "own"], default="exact")
    CHOSEN = OPTIONS.parse_args()
    if CHOSEN.backend == "pmap":
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import fedjax
import jax
import jax.numpy as jnp
import optax
from fedjax.algorithms import fed_avg

Params = list[jax.Array]
Batch = dict[str, Any]


class Epoch(fedjax.ClientDataset):
    """A client whose training batches cover its samples exactly once, the last batch smaller."""

    shuffle = True
    seen: tuple[int, int] = (0, 0)  # steps and samples of the last client

    def shuffle_repeat_batch(self, hparams: Any) -> Iterator[Batch]:
        """What FedJAX's algorithms ask for."""
        examples = self.all_examples()
        size = len(self)
        order = np.random.permutation(size) if Epoch.shuffle else np.arange(size)
        Epoch.seen = (0, 0)
        for start in range(0, size, hparams.batch_size):
            chosen = order[start : start + hparams.batch_size]
            Epoch.seen = (Epoch.seen[0] + 1, Epoch.seen[1] + len(chosen))
            yield {name: values[chosen] for name, values in examples.items()}


class Peer:
    """The algorithm, the clients and the state of the server."""

    def __init__(self, work: Workload, data: Clients, exact: bool) -> None:
        self.work = work
        images = scaled(data.images)
        if work.model == "cnn":
            images = np.ascontiguousarray(np.moveaxis(images, 2, -1))
        kind = Epoch if exact else fedjax.ClientDataset
        pairs = zip(images, data.labels.astype(np.int32), strict=True)
        self.clients = [kind({"x": x, "y": y}) for x, y in pairs]
        self.loss = loss_of(work)
        gradient = jax.grad(self.loss)
        self.algorithm = fed_avg.federated_averaging(
            lambda params, batch, _: gradient(params, batch),
            fedjax.optimizers.create_optimizer_from_optax(optax.sgd(work.lr)),
            fedjax.optimizers.create_optimizer_from_optax(optax.sgd(1.0)),
            fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1),
        )
        self.state = self.algorithm.init(to_jax(work, initial(work)))
        self.keys = jax.random.split(jax.random.PRNGKey(0), work.cohort)
        self.rounds = 0

    def round(self) -> None:
        """One round; done when the parameters are there."""
        chosen = cohort(self.work, self.rounds)
        pairs = zip(chosen, self.keys, strict=True)
        self.state, _ = self.algorithm.apply(
            self.state, [(client, self.clients[client], key) for client, key in pairs]
        )
        jax.block_until_ready(self.state.params)
        self.rounds += 1


def loss_of(work: Workload) -> Callable[[Params, Batch], jax.Array]:
    """Mean cross entropy of the workload's model."""
    logits = {"mlp": _mlp, "cnn": _cnn}[work.model]

    def loss(params: Params, batch: Batch) -> jax.Array:
        outputs = logits(work, params, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["y"]).mean()

    return loss


def _mlp(_: Workload, params: Params, x: jax.Array) -> jax.Array:
    weight1, bias1, weight2, bias2 = params
    hidden = jax.nn.relu(x.reshape(len(x), -1) @ weight1 + bias1)
    return hidden @ weight2 + bias2


def _cnn(work: Workload, params: Params, x: jax.Array) -> jax.Array:
    kernel1, offset1, kernel2, offset2, *dense = params
    for kernel, offset in ((kernel1, offset1), (kernel2, offset2)):
        padding = [(work.padding, work.padding)] * 2
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=layout)
        x = jax.nn.relu(x + offset)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return _mlp(work, dense, x)


def to_jax(work: Workload, params: list[NDArray[np.float32]]) -> Params:
    """Torch's layout to JAX's: channels last, weights ``(in, out)``."""
    return [jnp.asarray(array) for array in _relaid(work, params, torch_to_jax=True)]


def from_jax(work: Workload, params: Params) -> list[NDArray[np.float32]]:
    """JAX's layout to torch's."""
    return _relaid(work, [np.asarray(array) for array in params], torch_to_jax=False)


def _relaid(
    work: Workload, params: list[NDArray[np.float32]], torch_to_jax: bool
) -> list[NDArray[np.float32]]:
    found = []
    for number, array in enumerate(params):
        if array.ndim == 4:
            found.append(array.transpose((2, 3, 1, 0) if torch_to_jax else (3, 2, 0, 1)))
        elif array.ndim == 2 and work.model == "cnn" and number == 4:
            found.append(_flattening(array, torch_to_jax))
        else:
            found.append(array.T)
    return found


def _flattening(array: NDArray[np.float32], torch_to_jax: bool) -> NDArray[np.float32]:
    """The layer after the pictures: its inputs are channels first in torch, channels last here."""
    if torch_to_jax:
        side = round((array.shape[1] // 64) ** 0.5)
        pictures = array.reshape(-1, 64, side, side).transpose(2, 3, 1, 0)
        return pictures.reshape(-1, array.shape[0])
    side = round((array.shape[0] // 64) ** 0.5)
    pictures = array.reshape(side, side, 64, -1).transpose(3, 2, 0, 1)
    return pictures.reshape(array.shape[1], -1)


def prepared(work: Workload, exact: bool) -> tuple[Peer, dict[str, object]]:
    """Checked against the reference, compiled, and warmed up by two rounds."""
    np.random.seed(0)  # FedJAX shuffles by numpy's global generator
    data = clients(work)
    peer = Peer(work, data, exact)
    images, labels = probe(data)
    x = np.moveaxis(scaled(images), 1, -1) if work.model == "cnn" else scaled(images)
    fixed = {"x": jnp.asarray(x), "y": jnp.asarray(labels, jnp.int32)}
    before = float(peer.loss(peer.state.params, fixed))
    facts: dict[str, object] = {"order": "shuffled", "error": None}
    if exact:
        Epoch.shuffle = False
        peer.round()
        Epoch.shuffle = True
        facts["error"] = check(work, from_jax(work, peer.state.params))
        assert Epoch.seen == (work.steps, work.samples), Epoch.seen
    facts["steps"] = work.steps
    facts["samples"] = work.samples if exact else work.steps * work.batch
    peer.round()
    peer.round()
    shapes = [array.shape for array in peer.state.params]
    assert shapes == [array.shape for array in to_jax(work, initial(work))], shapes
    after = float(peer.loss(peer.state.params, fixed))
    assert after < before, (before, after)
    return peer, {**facts, "loss": [before, after]}


def main() -> None:
    channel = Channel()
    even = WORKLOADS[CHOSEN.workload].cohort % 2 == 0
    exact = CHOSEN.batches == "exact" and (CHOSEN.backend == "jit" or even)
    # Else a part of a pmap result keeps its device axis, and FedJAX's sums broadcast it into the parameters.
    jax.config.update("jax_pmap_no_rank_reduction", False)
    fedjax.set_for_each_client_backend(CHOSEN.backend)
    peer, facts = prepared(WORKLOADS[CHOSEN.workload], exact)

    def rounds(number: int) -> None:
        for _ in range(number):
            peer.round()

    channel.serve(rounds, peer=f"fedjax-{CHOSEN.backend}", workload=CHOSEN.workload, **facts)


if __name__ == "__main__":
    main()
