"""CWR+ and CWR* by hand and written out, in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from chronofed import (
    Classification,
    CoreSet,
    Custom,
    Cwr,
    Dataset,
    FedAvg,
    Method,
    Mlp,
    Samples,
    Si,
    Train,
    run,
)
from chronofed.core.errors import SpecError
from chronofed.methods.wrappers.cwr import consolidated
from chronofed.scenarios.base import Plan, Visit

CLASSES, WIDTH = 4, 3


def double_linear(shape, classes):
    return nn.Linear(shape[0], classes).double()


def double_mlp(shape, classes):
    return Mlp((5,)).build(shape, classes).double()


def task(model="double_linear", order=range(CLASSES)):
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(40, WIDTH, generator=draw, dtype=torch.float64)
    y = torch.tensor(list(order))[torch.arange(40) % CLASSES]
    samples = Samples(x, y)
    data = Dataset("rows", samples, samples, tuple("abcd"))
    return Classification(data, Custom(f"{__name__}:{model}"))


class World:
    """Client 0 has classes 0, 1 and then 1, 2; client 1 has class 1 and then 0; nobody has class 3 at first."""

    persistent, rounds, clients = True, None, 2
    held = (((0, 1), (1,)), ((1, 2), (0,)), ((3,), (0, 3)))

    def at(self, t):
        rows = np.arange(40)
        visits = {}
        for client, classes in enumerate(self.held[t % 3]):
            mine = rows[np.isin(rows % CLASSES, classes) & (rows // CLASSES % 2 == client)]
            visits[client] = Visit(mine, t % 3)
        return Plan(t, visits)


def trained(backbone, rounds=5, on=None, average="samples", **settings):
    train = Train(lr=0.3, steps=4, batch_size="full", **settings)
    method = Method(backbone, average=average)
    return [*run(method, World(), on or task(), rounds=rounds, train=train)]


def written_out(rounds, rule, average="samples"):
    """NumPy, a head without bias; every class by itself."""
    data = task().data.train
    x, y = data.x.numpy(), data.y.numpy()
    kept, seen = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
    for t in range(rounds):
        sums, counts = np.zeros_like(kept), np.zeros(CLASSES)
        for visit in World().at(t).visits.values():
            mine, labels = x[visit.indices], y[visit.indices]
            own = sorted(set(labels))
            rows = np.zeros_like(kept)
            if rule == "star":
                rows[own] = kept[own]
            for _ in range(4):
                p = np.exp(mine @ rows.T)
                p /= p.sum(1, keepdims=True)
                p[np.arange(len(labels)), labels] -= 1
                rows = rows - 0.3 * p.T @ mine / len(labels)
            m = rows[own].mean()
            for j in own:
                n = (labels == j).sum() / (1 if average == "samples" else len(labels))
                sums[j] += n * (rows[j] - m)
                counts[j] += n
        for j in np.flatnonzero(counts):
            past = np.sqrt(seen[j] / counts[j])
            kept[j] = (kept[j] * past + sums[j] / counts[j]) / (past + 1)
            seen[j] += counts[j]
        yield kept.copy()


def heads(snapshots):
    return [s.params[: CLASSES * WIDTH].view(CLASSES, WIDTH).numpy() for s in snapshots]


@pytest.mark.parametrize("rule", ["star", "plus"])
@pytest.mark.parametrize("average", ["samples", "clients"])
def test_written_out(rule, average):
    ends = trained(Cwr(rule=rule), average=average)
    for got, want in zip(heads(ends), written_out(5, rule, average), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-14)
    assert ends[-1].params[CLASSES * WIDTH :].abs().max() == 0  # the bias
    assert not np.allclose(*(heads(trained(Cwr(rule=r)))[-1] for r in ("star", "plus")))


def test_rows_by_hand():
    """Rows (1, 3), (2, 0) have the mean 3/2; class 0 again with (2, 2) - 2, 8 samples before, 2 now."""
    new = torch.tensor([[1.0, 3.0], [2.0, 0.0]], dtype=torch.float64)
    none, counts = torch.zeros(2, dtype=torch.float64), torch.tensor([8.0, 4.0]).double()
    want = torch.tensor([-1 / 3, 1.0], dtype=torch.float64)
    first = consolidated(torch.zeros_like(new), (new - new.mean()) * counts[:, None], none, counts)
    assert first.tolist() == [[-0.5, 1.5], [0.5, -1.5]]
    now = torch.tensor([2.0, 0.0]).double()
    again = consolidated(first, torch.zeros_like(new), counts, now)
    assert again[0].tolist() == want.tolist()
    assert again[1].tolist() == [0.5, -1.5]


def test_the_order_of_classes_is_irrelevant():
    order = [2, 0, 3, 1]
    one, other = heads(trained(Cwr())), heads(trained(Cwr(), on=task(order=order)))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(b[order], a, rtol=0, atol=1e-14)


def test_a_class_that_nobody_has_keeps_its_row():
    first, second, third = heads(trained(Cwr(), 3))
    assert not first[3].any()
    assert (third[1] == second[1]).all()
    assert (third[2] == second[2]).all()
    assert (third[3] != second[3]).all()


def test_the_other_layers_are_the_inner_backbones():
    """Half of its server's step moves them by a half."""
    ends = trained(Cwr(FedAvg(server_lr=0.5)), 2, task("double_mlp"))
    names = task("double_mlp").objective().names
    body = slice(names["features.fc1.weight"].start, names["features.fc1.bias"].stop)
    assert (ends[1].params[body] != ends[0].params[body]).any()
    whole = trained(Cwr(), 2, task("double_mlp"))
    start = task("double_mlp").initial(0)[0][body]
    steps = [s[0].params[body] - start for s in (ends, whole)]
    torch.testing.assert_close(2 * steps[0], steps[1], rtol=0, atol=1e-15)


def test_the_inner_backbone_sees_no_step_of_the_last_layer():
    """So its norms, controls and momentum do not depend on rows that the server consolidates."""
    names, seen = task("double_mlp").objective().names, []

    class Spy(FedAvg, tag="test-cwr-spy"):
        def aggregate(self, server, uploads):
            seen.extend(upload["delta"] for _, upload in uploads)
            return super().aggregate(server, uploads)

    trained(Cwr(Spy()), 2, task("double_mlp"))
    for delta in seen:
        assert not delta[names["fc.weight"]].any()
        assert not delta[names["fc.bias"]].any()
        assert delta[names["features.fc1.weight"]].any()


def test_ar1_is_cwr_around_si_without_the_head():
    """Nothing of SI's importance is on the head, and it is bounded."""
    inner = Si(damping=1e-7, largest=0.001, layers={"fc.*": 0.0, "*": 1.0})
    last = trained(Cwr(inner), 4, task("double_mlp"))[-1]
    names = task("double_mlp").objective().names
    for state in last.client_states.values():
        importance = state.backbone_state["si_importance"]
        assert importance[names["fc.weight"]].abs().max() == 0
        assert 0 < importance.max() <= 0.001
    plain = trained(Cwr(), 4, task("double_mlp"))[-1]
    assert not torch.equal(last.params, plain.params)


def test_replayed_classes_count():
    """With all of their weight: in round 1 client 0 has 10 samples and replays 5 of class 0 and 5 of class 1.

    So its 10 count as 2.5, 5 and 2.5 of classes 0, 1 and 2. Client 1 has 5 of class 0 and replays 5 of class 1.
    """
    train = Train(lr=0.3, steps=4, batch_size="full")
    method = Method(Cwr(), CoreSet(100))
    first, last = run(method, World(), task(), rounds=2, train=train)
    assert first.server["cwr_seen"].tolist() == [5, 10, 0, 0]
    assert last.server["cwr_seen"].tolist() == pytest.approx([5 + 5, 10 + 7.5, 2.5, 0], abs=1e-12)
    assert trained(Cwr(), 2)[-1].server["cwr_seen"].tolist() == [10, 15, 5, 0]


def test_a_layer_of_this_name():
    named = trained(Cwr(layer="fc"), 2, task("double_mlp"))[-1]
    assert torch.equal(named.params, trained(Cwr(), 2, task("double_mlp"))[-1].params)
    with pytest.raises(SpecError, match=r"layer: the model has no layer 'head'; known: features\."):
        trained(Cwr(layer="head"), 1, task("double_mlp"))
    with pytest.raises(ValueError, match=r"^Cwr\.server_lr: set server_lr of the inner backbone"):
        Cwr(server_lr=0.5)


def test_what_travels():
    traffic, params = (lambda last: (last.traffic, last.params))(trained(Cwr(), 1)[-1])
    rows, shares = 8 * CLASSES * WIDTH, 8 * CLASSES
    assert traffic.down_bytes == 2 * params.nbytes
    assert traffic.up_bytes == 2 * (params.nbytes + rows + shares)
