"""FedExP and FedACG against their formulas written out."""

import pytest
import torch

from chronofed import (
    Averaged,
    Clipped,
    Clusters,
    Cwr,
    FedAcg,
    FedAvg,
    FedExp,
    FedOpt,
    FedProx,
    Method,
    Private,
    Upload,
)
from chronofed.methods.wrappers.fedexp import extrapolation


def updates(*vectors):
    shares = [1 / len(vectors)] * len(vectors)
    return [
        Upload(a, {"delta": torch.tensor(v, dtype=torch.float64)})
        for a, v in zip(shares, vectors, strict=True)
    ]


def test_the_step_of_fedexp():
    backbone, params = FedExp(epsilon=0.1), torch.tensor([1.0, 2.0], dtype=torch.float64)
    server = backbone.init_server(params, 2)
    uploads = updates([4.0, 0.0], [0.0, 2.0])
    eta = ((16 + 4) / 2) / (2 * (4 + 1 + 0.1))
    assert extrapolation(uploads, 0.1) == pytest.approx(max(1.0, eta))
    apart = updates([4.0, 1.0], [-4.0, 1.0])
    eta = 17 / (2 * (1 + 0.1))
    after = backbone.serve(backbone.aggregate(server, apart))
    torch.testing.assert_close(after["params"], params + eta * torch.tensor([0.0, 1.0]))
    # The mean of the last two models is evaluated.
    torch.testing.assert_close(after["served"], (params + after["params"]) / 2)
    last = FedExp(epsilon=0.1, average=False)
    assert "served" not in last.serve(last.aggregate(server, apart))


def test_clients_that_agree_make_a_plain_step(train_for):
    """One client, whose update is the mean: half of a step would be too short, so it is 1."""
    one = updates([3.0, 4.0])
    server = FedExp().init_server(torch.zeros(2, dtype=torch.float64), 1)
    assert FedExp().aggregate(server, one)["params"].tolist() == [3.0, 4.0]
    plain = train_for(Method(), 4).params
    huge = train_for(Method(FedExp(epsilon=1e9, average=False)), 4).params
    torch.testing.assert_close(huge, plain, rtol=1e-5, atol=1e-6)


def test_the_steps_of_fedacg():
    """The sequence of the publication, with a step that depends on where clients start."""
    backbone = FedAcg(momentum=0.7)
    w = torch.tensor([1.0, -2.0], dtype=torch.float64)
    server, m = backbone.init_server(w, 1), torch.zeros(2, dtype=torch.float64)
    for t in range(5):
        drawn = backbone.draw(server, 0, t)
        ahead = w + 0.7 * m
        torch.testing.assert_close(backbone.broadcast(drawn)["params"], ahead)
        assert set(backbone.broadcast(drawn)) == {"params"}
        step = -0.3 * ahead
        server = backbone.serve(backbone.aggregate(drawn, [Upload(1.0, {"delta": step})]))
        m = 0.7 * m + step
        w = w + m
        torch.testing.assert_close(server["params"], w)
        torch.testing.assert_close(server["acg_momentum"], m)


def test_without_momentum_it_is_the_inner_backbone(train_for):
    for inner in (FedProx(), FedOpt()):
        one, other = (train_for(Method(b), 4).params for b in (FedAcg(inner, momentum=0.0), inner))
        assert torch.equal(one, other)
    assert not torch.equal(train_for(Method(FedAcg()), 4).params, train_for(Method(), 4).params)


def test_the_mean_of_models_is_of_what_the_server_steps_made(train_for):
    inner = train_for(Method(FedAcg()), 1)
    outer = train_for(Method(Averaged(FedAcg())), 1)
    assert torch.equal(outer.params, inner.params)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"^Private\.backbone: FedExp needs the upload of every"):
        Private(FedExp())
    with pytest.raises(
        ValueError, match=r"^FedExp\.backbone: it would see updates before they are"
    ):
        FedExp(Clipped(FedAvg()))
    with pytest.raises(ValueError, match="FedExp needs the models of clients, which Cwr does not"):
        FedExp(Cwr())
    for kind in (FedExp, FedAcg):
        with pytest.raises(ValueError, match=rf"^{kind.__name__}\.backbone: it has several models"):
            kind(Clusters())
