"""Each backbone against its formula, written out by hand; every term has a test that dies without it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from chronofed import (
    Backbone,
    Classification,
    Ditto,
    FedAvg,
    FedNova,
    FedOpt,
    FedProx,
    Method,
    Mime,
    MimeLite,
    Mlp,
    Private,
    Scaffold,
    Snapshot,
    Stateless,
    Subsets,
    Train,
    run,
)
from chronofed.core.errors import IncompatibleError
from chronofed.core.spec_io import alternatives
from chronofed.methods.backbones.base import Upload, weighted_mean
from chronofed.methods.backbones.fednova import effective_steps
from chronofed.methods.local import ClientLocal
from chronofed.methods.method import check
from chronofed.methods.surrogate import Surrogate
from chronofed.methods.wrappers import Wrapper
from chronofed.models.zoo import Custom
from tests.helpers.methods import FITTING
from tests.helpers.world import blobs


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_weighted_mean():
    uploads = [(1.0, {"delta": vector(1, 2)}), (3.0, {"delta": vector(5, -2)})]
    assert weighted_mean(uploads, "delta").tolist() == [4.0, -1.0]


def test_mean_of_one_is_exact():
    value = vector(0.1, 1 / 3)
    assert torch.equal(weighted_mean([(7.0, {"d": value})], "d"), value)


@pytest.mark.parametrize("backbone", [FedAvg(server_lr=0.5), FedProx(mu=0.2, server_lr=0.5)])
def test_server_step(backbone):
    """w + 0.5 * (1/4 * 4 + 3/4 * 8) = 1 + 3.5"""
    server = backbone.init_server(vector(1.0), clients=2)
    uploads = [(1.0, {"delta": vector(4.0)}), (3.0, {"delta": vector(8.0)})]
    assert backbone.aggregate(server, uploads)["params"].tolist() == [4.5]
    assert server["params"].tolist() == [1.0]  # the old state is left alone


def test_upload_is_the_update():
    upload, state = FedAvg().finish(vector(3.0), {"params": vector(1.0)}, {}, None)
    assert upload["delta"].tolist() == [2.0]
    assert state == {}


def test_server_state_is_a_copy():
    params = vector(1.0)
    server = FedAvg().init_server(params, clients=2)
    params.zero_()
    assert server["params"].tolist() == [1.0]


def test_fedavg_follows_the_gradient():
    grad = vector(1.0, -2.0)
    assert FedAvg().direction(grad, vector(9, 9), {"params": vector(0, 0)}, {}).tolist() == [1, -2]


def test_fedprox_direction_is_the_gradient_of_the_proximal_objective():
    generator = torch.Generator().manual_seed(0)
    w_t, w = torch.randn(2, 7, dtype=torch.float64, generator=generator)
    v = w.clone().requires_grad_()
    (0.5 * 0.3 * (v - w_t).square().sum()).backward()
    step = FedProx(0.3).direction(torch.zeros(7).double(), w, {"params": w_t}, {})
    torch.testing.assert_close(step, v.grad, rtol=0, atol=1e-15)


def test_neither_keeps_state_on_the_client():
    for backbone in (FedAvg(), FedProx()):
        assert not backbone.stateful
        assert backbone.init_client(vector(1.0)) == {}
        assert backbone.reference


def test_defaults_are_the_papers():
    assert FedProx().mu == 0.1
    assert FedAvg().server_lr == 1.0
    with pytest.raises(ValueError, match="server_lr"):
        FedAvg(server_lr=0.0)


# --- those that keep more than a model; the numbers of whole rounds are in tests/theory/test_two_rounds.py

W_T, W_K = vector(1.0, 2.0), vector(0.0, 4.0)


def client_at_work(steps=2, momentum=0.0, lr=0.5) -> SimpleNamespace:
    """A client whose full gradient is 10 w, and whose mini-batch gradients are 3 w + 1, 3 w + 2, ..."""
    drawn = iter(range(1, 100))

    def stochastic_gradients(*points):
        noise = next(drawn)
        return [3 * point + noise for point in points]

    return SimpleNamespace(
        steps=steps,
        train=Train(lr=lr, momentum=momentum),
        full_gradient=lambda params: 10 * params,
        stochastic_gradients=stochastic_gradients,
    )


BLOBS = Classification(blobs(), Mlp((3,)))


def real_client() -> ClientLocal:
    """A client with eight samples of three classes."""
    train = Train(lr=0.5, steps=2, batch_size="full")
    return ClientLocal(
        BLOBS.objective(), BLOBS.samples(np.arange(8)), Surrogate(), train, torch.Generator()
    )


SHIPPED = [c for c in alternatives(Backbone).values() if c.__module__.startswith("chronofed.")]


def received(backbone, server):
    """What reaches the first client."""
    sent = backbone.address(backbone.broadcast(server), 0)
    return backbone.receive(sent, BLOBS.objective())


@pytest.mark.parametrize("cls", SHIPPED)
def test_records_are_left_alone(cls):
    """A direction may use up the gradient, and nothing else; an aggregate returns new records."""
    backbone = cls(**FITTING.get(cls, {}))
    start, now = BLOBS.initial(0)[0], BLOBS.initial(1)[0]
    server = backbone.init_layers(backbone.init_server(start, clients=3), BLOBS.objective())
    server, client = backbone.draw(server, seed=0, round_=0), backbone.init_client(start)
    if backbone.two_phase:
        answer = backbone.prepare(received(backbone, server), real_client())
        server = backbone.begin(server, [Upload(1.0, answer, 0)])
    sent, local = received(backbone, server), real_client()
    records = {**server, **{f"sent {n}": t for n, t in sent.items()}, **client, "now": now}
    before = {name: tensor.clone() for name, tensor in records.items()}
    backbone.start(sent, client, local)
    backbone.direction(backbone.gradient(now, sent, local), now, sent, client)
    if cls is not Ditto:
        answer, _ = backbone.finish(now, sent, client, local)
        upload = backbone.unpack(answer, start)
        answer = {name: tensor.clone() for name, tensor in upload.items()}
        weights = (1.0, 1.0 if backbone.private else 2.0)
        backbone.aggregate(server, [Upload(a, upload, i) for i, a in enumerate(weights)])
        torch.testing.assert_close(upload, answer, rtol=0, atol=0)
    for name, tensor in records.items():
        assert torch.equal(tensor, before[name])


def double(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, classes)).double()


@pytest.mark.parametrize(
    "inner",
    [c(**FITTING.get(c, {})) for c in SHIPPED if not issubclass(c, Wrapper)],
    ids=lambda b: type(b).__name__,
)
def test_an_optimizer_that_does_nothing_leaves_the_inner_backbone(inner):
    task = Classification(blobs(dtype=torch.float64), Custom(f"{__name__}:double"))
    world = Subsets(clients=3, subsets=2).on(task.data, seed=0)
    train = Train(lr=0.1, steps=2, batch_size=8)

    def trained(backbone: Backbone) -> list[Snapshot]:
        return list(run(Method(backbone), world, task, rounds=3, train=train))

    plain, wrapped = trained(inner), trained(FedOpt(inner, "momentum", 0.0, server_lr=1.0))
    assert set(wrapped[-1].server) == {*plain[-1].server, "opt_m"}
    for a, b in zip(plain, wrapped, strict=True):
        torch.testing.assert_close(b.params, a.params, rtol=0, atol=1e-12)
        assert a.client_states.keys() == b.client_states.keys()
        for i, client_state in a.client_states.items():
            torch.testing.assert_close(
                b.client_states[i].backbone_state, client_state.backbone_state, rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("backbone", [MimeLite(0.25), Mime(0.25)])
def test_mime_steps_along_gradient_and_momentum(backbone):
    """3/4 * 8 + 1/4 * 4 = 7"""
    server = {"params": W_T, "momentum": vector(4.0, 4.0), "control": vector(9.0, 9.0)}
    assert backbone.direction(vector(8.0, 8.0), W_K, server, {}).tolist() == [7.0, 7.0]


def test_mimelite_sends_the_full_gradient_at_the_servers_model():
    upload, state = MimeLite().finish(W_K, {"params": W_T}, {}, client_at_work())
    assert upload["gradient"].tolist() == [10.0, 20.0]
    assert upload["delta"].tolist() == [-1.0, 2.0]
    assert state == {}


def test_mimelite_moves_its_momentum_by_the_weighted_mean():
    """3/4 * (1/4 * 4 + 3/4 * 8) + 1/4 * 8 = 7.25"""
    backbone = MimeLite(0.25, server_lr=0.5)
    server = {"params": vector(1.0), "momentum": vector(8.0)}
    uploads = [
        (1.0, {"delta": vector(4.0), "gradient": vector(4.0)}),
        (3.0, {"delta": vector(8.0), "gradient": vector(8.0)}),
    ]
    after = backbone.aggregate(server, uploads)
    assert {k: v.item() for k, v in after.items()} == {"params": 4.5, "momentum": 7.25}


def test_mime_begins_with_the_full_gradients():
    backbone = Mime()
    server = backbone.init_server(vector(1.0), clients=2)
    assert backbone.prepare(server, client_at_work())["gradient"].tolist() == [10.0]
    uploads = [(1.0, {"gradient": vector(4.0)}), (3.0, {"gradient": vector(8.0)})]
    begun = backbone.begin(server, uploads)
    assert begun["control"].tolist() == [7.0]
    assert begun.keys() == {*server, "control"}


def test_mime_corrects_by_the_same_batch():
    """(3 y + noise) - (3 w_t + noise) + c, and the next batch likewise"""
    server, local = {"params": W_T, "control": vector(100.0, 200.0)}, client_at_work()
    for _ in range(2):
        assert Mime().gradient(W_K, server, local).tolist() == [97.0, 206.0]


def test_mimes_momentum_follows_the_control():
    """3/4 * 16 + 1/4 * 8 = 14; the control is for one round only"""
    server = {"params": vector(1.0), "momentum": vector(8.0), "control": vector(16.0)}
    after = Mime(0.25, server_lr=0.5).aggregate(server, [(1.0, {"delta": vector(4.0)})])
    assert {k: v.item() for k, v in after.items()} == {"params": 3.0, "momentum": 14.0}


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_effective_steps_are_the_sum_of_the_gradients_weights(steps, momentum):
    position = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        position += velocity
    assert effective_steps(steps, momentum) == pytest.approx(position, abs=1e-12)


def test_fednova_sends_its_update_a_step():
    """Two steps with momentum 1/2 weigh 1 + 3/2."""
    upload, _ = FedNova().finish(W_K, {"params": W_T}, {}, client_at_work(momentum=0.5))
    assert upload["steps"].item() == 2.5
    assert upload["delta"].tolist() == [-1 / 2.5, 2 / 2.5]


def test_fednova_goes_the_mean_number_of_steps():
    """1 + 1/2 * (1/4 * 2 + 3/4 * 6) * (1/4 * 4 + 3/4 * 8) = 1 + 1/2 * 5 * 7"""
    steps = [torch.tensor(a, dtype=torch.float64) for a in (2.0, 6.0)]
    uploads = [
        (1.0, {"delta": vector(4.0), "steps": steps[0]}),
        (3.0, {"delta": vector(8.0), "steps": steps[1]}),
    ]
    after = FedNova(server_lr=0.5).aggregate({"params": vector(1.0)}, uploads)
    assert after["params"].tolist() == [18.5]


CONTROLS = {"params": W_T, "control": vector(1.0, 10.0)}, {"control": vector(5.0, 7.0)}


def test_scaffold_corrects_for_the_drift():
    """g - c_i + c"""
    step = Scaffold().direction(vector(100.0, 200.0), W_K, *CONTROLS)
    assert step.tolist() == [96.0, 203.0]


@pytest.mark.parametrize(
    ("option", "momentum", "control"),
    [
        ("I", 0.0, [10.0, 20.0]),
        ("II", 0.0, [5 - 1 + 1 / (2 * 0.5), 7 - 10 - 2 / (2 * 0.5)]),
        ("II", 0.5, [5 - 1 + 1 / (2.5 * 0.5), 7 - 10 - 2 / (2.5 * 0.5)]),
    ],
)
def test_scaffold_renews_the_clients_control(option, momentum, control):
    """I: the full gradient at w_t.  II: c_i - c + (w_t - w_K) / (K lr), K counted with the momentum."""
    local = client_at_work(momentum=momentum)
    upload, state = Scaffold(option).finish(W_K, *CONTROLS, local)
    assert state["control"].tolist() == pytest.approx(control, abs=1e-12)
    change = [control[0] - 5, control[1] - 7]
    assert upload["control"].tolist() == pytest.approx(change, abs=1e-12)
    assert upload["delta"].tolist() == [-1.0, 2.0]


def test_scaffolds_control_moves_by_the_share_of_clients():
    """2 of 8 came: 1 + 2/8 * (4 + 8)/2 = 2.5, whatever their weights; the model goes by the weights."""
    server = Scaffold().init_server(vector(1.0), clients=8)
    server = {**server, "control": vector(1.0)}
    uploads = [
        (1.0, {"delta": vector(4.0), "control": vector(4.0)}),
        (3.0, {"delta": vector(8.0), "control": vector(8.0)}),
    ]
    after = Scaffold(server_lr=0.5).aggregate(server, uploads)
    assert {k: v.item() for k, v in after.items()} == {
        "params": 4.5,
        "control": 2.5,
        "clients": 8.0,
    }


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))


def test_dittos_personal_model_has_its_own_statistics(train_for, data):
    """BatchNorm's buffers of the global model are FedAvg's, those of the personal one are not."""
    task = Classification(data, Custom(f"{__name__}:normed"))
    plain, ditto = (train_for(Method(b), 3, task=task) for b in (FedAvg(), Ditto()))
    assert torch.equal(ditto.buffers, plain.buffers)
    assert torch.equal(ditto.params, plain.params)
    assert all(
        client_state.backbone_state.keys() == {"personal", "buffers"}
        for client_state in ditto.client_states.values()
    )


def test_dittos_personal_statistics_go_on_where_they_ended():
    def descend(start, direction):
        seen.append(local.objective.buffers.item())
        local.objective.buffers = local.objective.buffers + 1
        return start

    seen, local = [], SimpleNamespace(objective=SimpleNamespace(buffers=vector(20.0)))
    local.descend = descend
    state = Ditto().init_client(W_T)
    for _ in range(3):
        _, state = Ditto().finish(W_K, {"params": W_T}, state, local)
        assert local.objective.buffers.item() == 20.0
    assert seen == [20.0, 21.0, 22.0]  # from the global ones at first


def test_ditto_sends_nothing_personal(train_for):
    plain, ditto = (train_for(Method(b), 2) for b in (FedAvg(), Ditto()))
    assert ditto.traffic == plain.traffic
    assert ditto.server.keys() == {"params"}


def test_fedopt_is_what_its_backbone_is():
    for inner in (FedAvg(), Scaffold(), Mime(), Ditto()):
        for trait in ("stateful", "two_phase", "fixed_data"):
            assert getattr(FedOpt(inner), trait) is getattr(inner, trait)


def test_a_wrapper_class_does_not_answer_for_an_inner_backbone():
    with pytest.raises(AttributeError, match=r"^FedOpt.stateful depends on the inner backbone"):
        _ = FedOpt.stateful
    assert Private.private


def test_fedopt_around_a_backbone_with_state_needs_returning_clients(data, scenario):
    stateless = Stateless(clients=3, subsets=6, client_alpha=1.0).on(data, seed=0)
    check(Method(FedOpt(Mime())), stateless)
    check(Method(FedOpt(Scaffold())), scenario)
    with pytest.raises(IncompatibleError, match="keeps its state on the client"):
        check(Method(FedOpt(Scaffold())), stateless)


def test_fedopt_keeps_its_state_through_an_exchange():
    class Careless(Backbone):
        def begin(self, server, uploads):
            return {"params": server["params"], "own": vector(1.0)}

    backbone = FedOpt(Careless())
    begun = backbone.begin(backbone.init_server(W_T, clients=2), [])
    assert begun.keys() == {"params", "own", "opt_m", "opt_v"}


def test_fedopt_takes_the_inner_step_for_a_gradient():
    """D = 1/2 * 4 = 2, m = 3/4 * 8 + D = 8, w = 1 + 1/4 * 8"""
    backbone = FedOpt(FedAvg(server_lr=0.5), "momentum", 0.75, server_lr=0.25)
    server = {"params": vector(1.0), "opt_m": vector(8.0)}
    after = backbone.aggregate(server, [(1.0, {"delta": vector(4.0)})])
    assert {k: v.item() for k, v in after.items()} == {"params": 3.0, "opt_m": 8.0}


@pytest.mark.parametrize(
    ("optimiser", "v", "square"),
    [
        ("adam", 16.0, 0.75 * 16 + 0.25 * 4),
        ("yogi", 16.0, 16 - 0.25 * 4),
        ("yogi", 1.0, 1 + 0.25 * 4),
    ],
)
def test_fedopt_divides_by_the_size_of_the_steps(optimiser, v, square):
    """D = 2, m = 3/4 * 8 + 1/4 * 2 = 6.5, w = 1 + 1/2 * m / (sqrt(v) + 1/10)"""
    backbone = FedOpt(FedAvg(), optimiser, 0.75, 0.75, 0.1, server_lr=0.5)
    server = {"params": vector(1.0), "opt_m": vector(8.0), "opt_v": vector(v)}
    after = backbone.aggregate(server, [(1.0, {"delta": vector(2.0)})])
    want = 1 + 0.5 * 6.5 / (square**0.5 + 0.1)
    assert after["opt_m"].tolist() == [6.5]
    assert after["opt_v"].tolist() == [square]
    assert after["params"].item() == pytest.approx(want, abs=1e-12)


def test_fedopt_begins_as_its_paper_does():
    """m = 0 and v = epsilon^2; momentum needs no v"""
    server = FedOpt(epsilon=0.5).init_server(W_T, clients=2)
    assert server["opt_m"].tolist() == [0.0, 0.0]
    assert server["opt_v"].tolist() == [0.25, 0.25]
    assert FedOpt(optimizer="momentum").init_server(W_T, 2).keys() == {"params", "opt_m"}


def test_no_optimiser_in_an_optimiser():
    with pytest.raises(ValueError, match="FedOpt in a FedOpt"):
        FedOpt(FedOpt())


@pytest.mark.parametrize("cls", SHIPPED)
def test_every_backbone_says_where_it_comes_from(cls):
    assert cls.reference
    assert "Attributes:" in cls.__doc__ or not set(cls.__struct_fields__) - {"server_lr"}


def test_decays_lie_below_one():
    for make in (lambda: MimeLite(1.0), lambda: Mime(-0.1), lambda: FedOpt(beta1=1.0)):
        with pytest.raises(ValueError, match="beta"):
            make()
    with pytest.raises(ValueError, match="option"):
        Scaffold("III")
