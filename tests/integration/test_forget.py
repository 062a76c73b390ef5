"""The commands ``chronofed forget`` and ``chronofed verify``."""

import json

import numpy as np
import pytest
import torch

from chronofed import (
    Classification,
    CoreSet,
    Dataset,
    FedAvg,
    Frozen,
    Gaussian,
    Method,
    Mlp,
    Ridge,
    Samples,
    load_model,
    run,
)
from chronofed.runs.checkpoint import load_latest
from chronofed.runs.forgetting import reason
from chronofed.scenarios.base import Plan, Visit

SPEC = """
name = "frozen"
rounds = 4
[model]
kind = "mlp"
hidden = [12]
[scenario]
kind = "subsets"
clients = 5
subsets = 3
[method.backbone]
kind = "frozen"
[method.head]
kind = "gaussian"
decay = 1.0
prior = "seen"
by_client = true
[evaluate]
every = 4
seen = 0
"""


@pytest.fixture
def ran(cli, workdir):
    (workdir / "spec.toml").write_text(SPEC)
    assert cli("run", "spec.toml", "-o", "R", "--quiet")[0] == 0
    return cli


def one_line(error: str) -> str:
    (line,) = error.strip().splitlines()
    return line


def weights(path) -> torch.Tensor:
    tensors = load_model(path)
    return torch.cat([p.flatten() for p in tensors.network.parameters()]).detach()


def test_a_client_is_forgotten_with_a_proof_that_holds(ran, workdir):
    before = json.loads((workdir / "R/summary.json").read_text())
    code, _, error = ran("forget", "R", "--client", 3, "--certify", "proof.json")
    assert code == 0
    assert "client 3 forgotten" in error
    proof = json.loads((workdir / "proof.json").read_text())
    assert proof["clients"] == [3]
    assert proof["difference"] <= 1e-6
    assert proof["before"].keys() == proof["after"].keys()
    assert all(proof["before"][name] != proof["after"][name] for name in proof["after"])
    assert ran("verify", "proof.json")[0] == 0
    # The run is finished as before, with one checkpoint, and knows what it must not use again.
    assert json.loads((workdir / "R/summary.json").read_text()) == before
    assert len(list((workdir / "R/checkpoints").glob("*.safetensors"))) == 1
    assert "clients = [3]" in (workdir / "R/spec.toml").read_text()
    assert ran("resume", "R")[0] == 0
    # What is exported has the new head.
    latest, _ = load_latest(workdir / "R/checkpoints")
    assert torch.equal(weights(workdir / "R"), latest.params)
    # Again: nothing is left of it.
    assert ran("forget", "R", "--client", 3, "--json")[0] == 0
    # Trained anew it is the same model.
    assert ran("run", "R/spec.toml", "-o", "fresh", "--quiet")[0] == 0
    torch.testing.assert_close(
        weights(workdir / "R"), weights(workdir / "fresh"), rtol=0, atol=1e-6
    )
    assert not list((workdir / "R/model").glob("*3*"))


def test_samples_are_forgotten_wherever_they_came(ran, workdir):
    held = [
        int(row)
        for row in json.loads(ran("forget", "R", "--row", 0, "--row", 7, "--row", 11, "--json")[1])[
            "rows"
        ]
    ]
    assert held == [0, 7, 11]
    code, _, error = ran("forget", "R", "--row", 20, "--client", 0, "--certify", "proof.json")
    assert (code, error.count("row 20")) == (0, 1)
    assert ran("verify", "proof.json")[0] == 0


def test_a_proof_that_does_not_hold_is_refused(ran, workdir):
    assert ran("forget", "R", "--client", 1, "--certify", "proof.json", "--quiet")[0] == 0
    proof = json.loads((workdir / "proof.json").read_text())

    def refused(why, **changes):
        (workdir / "other.json").write_text(json.dumps(proof | changes))
        code, _, error = ran("verify", "other.json")
        assert code != 0
        assert why in one_line(error)

    refused("the proof was changed", rounds=5)
    refused("head_sums: not what the proof says", after={"head_sums": "0"})
    refused("not a proof of this version", format="chronofed-forgetting-0")
    refused("is not a proof of forgetting", clients="all")
    code, _, error = ran("verify", "none.json")
    assert (code != 0, "no such file" in one_line(error)) == (True, True)
    # A run that still has the client.
    assert ran("run", "spec.toml", "-o", "whole", "--quiet")[0] == 0
    code, _, error = ran("verify", "proof.json", "--run", "whole")
    assert code != 0
    assert "the run's specification does not delete" in one_line(error)
    assert "sums of forgotten clients are still there" in one_line(error)
    assert "from one that never saw the data" in one_line(error)


def test_a_body_that_trained_says_what_stays_and_what_retraining_costs(cli, workdir):
    trained = SPEC.replace('"frozen"\n[method.head]', '"fedavg"\n[method.head]')
    (workdir / "spec.toml").write_text(trained)
    assert cli("run", "spec.toml", "-o", "R", "--quiet")[0] == 0
    content = (workdir / "R/spec.toml").read_text()
    code, _, error = cli("forget", "R", "--client", 3)
    assert code != 0
    line = one_line(error)
    assert "FedAvg trains the whole model on everybody's data" in line
    assert "add --retrain NEW, which takes 4 rounds, about" in line
    assert (workdir / "R/spec.toml").read_text() == content
    assert cli("forget", "R", "--client", 3, "--retrain", "NEW", "--quiet")[0] == 0
    snapshot, _ = load_latest(workdir / "NEW/checkpoints")
    assert snapshot.round == 4
    assert (
        not snapshot.server["head_by_client"][3:].any()
        or len(snapshot.server["head_by_client"]) > 4
    )
    assert "clients = [3]" in (workdir / "NEW/spec.toml").read_text()


def test_bad_requests_are_one_line(ran, workdir):
    for arguments, why in (
        ((), "name what to forget"),
        (("--client", 5), "the run has clients 0 to 4"),
        (("--client", -1), "numbered from 0"),
        (("--row", 10**6), "the run has rows 0 to"),
        (("--client", 1, "--retrain", "X", "--certify", "p.json"), "is its own proof"),
    ):
        code, _, error = ran("forget", "R", *arguments)
        assert code != 0
        assert why in one_line(error)
    (workdir / "R/summary.json").unlink()
    code, _, error = ran("forget", "R", "--client", 1)
    assert code != 0
    assert "only finished runs of this machine can forget" in one_line(error)


def test_which_methods_can_forget():
    head = Gaussian(decay=1.0, prior="seen", by_client=True)
    assert reason(Method(Frozen(), head=head)) is None
    assert reason(Method(Frozen(), CoreSet(), head=Ridge(decay=1.0, by_client=True))) is None
    assert "did not keep the sums" in reason(Method(Frozen(), head=Gaussian(decay=1.0)))
    assert "FedAvg trains" in reason(Method(FedAvg(), head=head))
    assert "FedAvg trains" in reason(Method(head=head))


@pytest.mark.product
def test_a_thousand_clients():
    """Forgotten one by one or together, the model is that of those who are left."""
    clients, draw = 1000, torch.Generator().manual_seed(0)
    y = torch.arange(20 * clients) % 10
    x = torch.randn(len(y), 16, generator=draw) + torch.eye(10, 16)[y]
    samples = Samples(x, y)
    data = Dataset("many", samples, samples[torch.arange(100)], tuple("abcdefghij"))
    task = Classification(data, Mlp((32,)))

    class World:
        persistent, rounds = True, 2

        def __init__(self, gone=()):
            self.clients, self.gone = clients, set(gone)

        def at(self, t):
            rows = np.arange(10) + 10 * t
            here = (i for i in range(clients) if i not in self.gone)
            return Plan(t, {i: Visit(20 * i + rows, t) for i in here})

    method = Method(Frozen(), head=Gaussian(decay=1.0, prior="seen", by_client=True))
    *_, last = run(method, World(), task)
    gone = range(0, clients, 3)
    *_, never = run(method, World(gone), task)
    after = method.serve(method.composed.forget(last.server, list(gone)))
    torch.testing.assert_close(after["served"], never.params, rtol=0, atol=1e-6)
