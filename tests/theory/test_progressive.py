"""Progressive networks: identities of the model and of the backbone that trains it."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from chronofed import (
    Classification,
    FedAvg,
    FedProx,
    Method,
    Mlp,
    Pnn,
    Progressive,
    Scaffold,
    Train,
    run,
)
from chronofed.scenarios.base import Plan, Visit

COLUMNS, HIDDEN = 3, (6, 4)
HARD = {"momentum": 0.5, "weight_decay": 0.1}


class World:
    """Two clients; ``keys[t]`` has the data set of each."""

    persistent, rounds, clients = True, None, 2

    def __init__(self, *keys):
        self.keys = [(k, k) if isinstance(k, int) else k for k in keys]

    def at(self, t):
        held = enumerate(self.keys[t])
        return Plan(t, {i: Visit(np.arange(30) + 200 * k + 40 * i, k) for i, k in held})


@pytest.fixture(scope="module")
def task(data):
    return Classification(data, Progressive(COLUMNS, HIDDEN))


def trained(task, backbone, *keys, **settings):
    train = Train(lr=0.1, steps=3, batch_size=8, **settings)
    return [*run(Method(backbone), World(*keys), task, rounds=len(keys), train=train)]


def column(task, params, k):
    names = task.objective().names
    spans = [span for name, span in names.items() if name.startswith(f"columns.{k}.")]
    return torch.cat([params[span] for span in spans])


def gate(task, params):
    return params[task.objective().names["gate"]].tolist()


def test_one_column_is_an_mlp(data):
    """Bit for bit: as it starts, and as it is trained."""
    one, other = (Classification(data, m) for m in (Progressive(1, HIDDEN), Mlp(HIDDEN)))
    body = torch.arange(len(one.initial(3)[0])) >= 1  # the gate comes first
    assert one.objective().names["gate"] == slice(0, 1)
    assert torch.equal(one.initial(3)[0][body], other.initial(3)[0])
    ends = trained(one, Pnn(), 0, 1, 2), trained(other, FedAvg(), 0, 1, 2)
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a.params[body], b.params)
        assert a.params[0] == 1.0


@pytest.mark.parametrize("inner", [FedProx(0.5), Scaffold()], ids=repr)
def test_old_and_unborn_columns_do_not_change_by_a_bit(inner, task):
    """Also with momentum, weight decay and terms of the inner backbone; the newest one changes every round."""
    ends = trained(task, Pnn(inner), 0, 0, 1, 1, 2, 2, **HARD)
    before = task.initial(0)[0]
    for t, last in enumerate(ends):
        for k in range(COLUMNS):
            still = torch.equal(column(task, last.params, k), column(task, before, k))
            assert still == (k != t // 2), (t, k)
        assert gate(task, last.params) == [float(k == t // 2) for k in range(COLUMNS)]
        before = last.params


def test_the_outputs_of_an_old_column_stay(task, data):
    """What a data set learnt is there for ever: set the gate to its column."""
    ends = trained(task, Pnn(), 0, 1, 2)
    objective, x = task.objective(), data.test.x
    place = objective.names["gate"]
    later = ends[-1].params.clone()
    later[place] = ends[0].params[place]
    assert torch.equal(objective.logits(ends[0].params, x), objective.logits(later, x))
    assert not torch.equal(
        objective.logits(ends[0].params, x), objective.logits(ends[-1].params, x)
    )


def test_columns_written_out(task, data):
    """And without connections columns are networks of their own."""
    objective, (params, _) = task.objective(), task.initial(1)
    w = {n: params[s].view(objective.shapes[n]) for n, s in objective.names.items()}
    x, first = data.test.x, []

    def outputs(k, connected):
        h, seen = x, []
        for number, name in enumerate(("fc1", "fc2", "fc")):
            z = h @ w[f"columns.{k}.{name}.weight"].T + w[f"columns.{k}.{name}.bias"]
            for j in range(k if number and connected else 0):
                z = z + first[j][number - 1] @ w[f"columns.{k}.from_{name}.{j}.weight"].T
            h = z if name == "fc" else functional.relu(z)
            seen.append(h)
        return seen

    for k in range(COLUMNS):
        first.append(outputs(k, connected=True))
        params[objective.names["gate"]] = functional.one_hot(torch.tensor(k), COLUMNS).float()
        torch.testing.assert_close(objective.logits(params, x), first[-1][-1])
    alone = params.clone()
    for name, span in objective.names.items():
        alone[span] *= "from_" not in name
    torch.testing.assert_close(objective.logits(alone, x), outputs(2, connected=False)[-1])
    assert not torch.allclose(objective.logits(alone, x), objective.logits(params, x))


def test_a_data_set_that_comes_back_trains_nothing_and_the_last_column_takes_the_rest(task):
    ends = trained(task, Pnn(), 0, 1, 0, 2, 3)
    second, third = ends[1].params, ends[2].params
    assert torch.equal(second[COLUMNS:], third[COLUMNS:])  # after the gate
    assert gate(task, third) == [1.0, 0.0, 0.0]
    assert gate(task, ends[4].params) == [0.0, 0.0, 1.0]
    assert not torch.equal(column(task, ends[4].params, 2), column(task, ends[3].params, 2))
    assert ends[4].client_states[0].backbone_state["pnn_keys"].tolist() == [0, 1, 2, 3]


def test_clients_on_different_columns_share_the_gate(task):
    """Client 0 is on its second data set, client 1 on its first."""
    first, second = trained(task, Pnn(), (0, 0), (1, 0))
    assert gate(task, second.params) == [0.5, 0.5, 0.0]
    moved = [
        not torch.equal(column(task, first.params, k), column(task, second.params, k))
        for k in range(COLUMNS)
    ]
    assert moved == [True, True, False]


def test_another_model_has_no_columns(data):
    there = Classification(data, Mlp(HIDDEN))
    one, other = (trained(there, b, 0, 1) for b in (Pnn(), FedAvg()))
    assert torch.equal(one[-1].params, other[-1].params)
