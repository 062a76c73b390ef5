"""Balanced fine-tuning (EEIL) against identities and itself written out, in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from chronofed import (
    Balanced,
    Classification,
    Clipped,
    CoreSet,
    Distil,
    FedAvg,
    FedProx,
    Forget,
    Linear,
    Method,
    Pool,
    Private,
    Regression,
    Samples,
    Scaffold,
    Subsets,
    Taylor,
    Train,
    run,
)
from chronofed.core.errors import IncompatibleError
from chronofed.methods.wrappers.balanced import _balanced
from chronofed.models.zoo import Custom
from tests.helpers.incremental import accuracy_on, incremental, rings
from tests.helpers.world import slopes

LR, STEPS = 0.3, 5
DATA = rings(4, 64)
FULL = Train(lr=LR, steps=STEPS, batch_size="full")
# One client; in its second task class 1 comes again, class 3 is new.
WORLD = incremental(DATA, (0, 1, 2), (1, 3), clients=1)


def double_linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes).double()


TASK = Classification(DATA, Custom(f"{__name__}:double_linear"))


def trained(backbone, memory=None, rounds=3, train=FULL, task=TASK, world=WORLD):
    method = Method(backbone, CoreSet(8) if memory is None else memory)
    return list(run(method, world, task, rounds=rounds, train=train))


def same(one, other):
    return all(torch.equal(a.params, b.params) for a, b in zip(one, other, strict=True))


def outputs(w, x):
    return functional.linear(x, w[:8].view(4, 2), w[8:])


def distance(z, teacher, classes):
    z, teacher = z[:, classes] / 2, teacher[:, classes] / 2
    return -(teacher.softmax(1) * z.log_softmax(1)).sum(1)


@pytest.mark.parametrize("keep", [0.0, 1.5])
def test_the_last_steps_written_out(keep):
    """Three plain steps, then two in which four classes count a quarter each; class 3 is taught by itself."""
    first, second = trained(
        Balanced(share=0.4, lr_factor=0.5, keep=keep), CoreSet(8, "balanced"), 2
    )
    kept = first.client_states[0].items[0].record
    present = DATA.train[torch.from_numpy(WORLD.at(1).visits[0].indices)]
    x, y = torch.cat([present.x, kept["x"]]), torch.cat([present.y, kept["y"]])
    counts, v, before = y.bincount(minlength=4).double(), first.params, None
    for step in range(STEPS):
        u = v.clone().requires_grad_()
        losses = functional.cross_entropy(outputs(u, x), y, reduction="none")
        if step < 3:
            loss = losses.mean()
        else:
            before = v.clone() if before is None else before
            share = 1 / (4 * counts[y])
            loss = share @ (losses + keep * distance(outputs(u, x), outputs(before, x), [3])) * 0.5
        v = v - LR * torch.autograd.grad(loss, u)[0]
    torch.testing.assert_close(second.params, v, rtol=0, atol=1e-13)


def test_two_new_classes_are_taught_by_the_model_before_the_stage():
    """A single class says nothing by itself; of two it matters."""
    world = incremental(DATA, (0, 1), (2, 3), clients=1)
    ends = [trained(Balanced(keep=k), None, 2, world=world)[-1].params for k in (0.0, 1.5)]
    assert (ends[0] - ends[1]).abs().max() > 1e-6
    ends = [trained(Balanced(keep=k), None, 2)[-1].params for k in (0.0, 1.5)]
    assert (ends[0] - ends[1]).abs().max() < 1e-15


def test_no_balanced_steps_or_nothing_replayed_is_the_inner_backbone():
    """Bit for bit, also with mini-batches."""
    small = Train(lr=LR, steps=STEPS, batch_size=4)
    for inner in (FedAvg(server_lr=0.5), FedProx(0.3), Scaffold()):
        for train in (FULL, small):
            plain = trained(inner, train=train)
            assert same(trained(Balanced(inner, share=0.0), train=train), plain)
            assert same(trained(Balanced(inner, share=0.1), train=train), plain)
            assert not same(trained(Balanced(inner), train=train), plain)
        for memory in (Forget(), Taylor(layers={"*": 1.0}), Distil()):
            assert same(trained(Balanced(inner), memory), trained(inner, memory))


def test_every_class_has_the_same_sum_of_weights():
    y = torch.tensor([0, 0, 0, 2, 2, 5])
    weight = torch.tensor([0.1, 0.2, 0.1, 0.3, 0.2, 0.1], dtype=torch.float64)
    found = _balanced(Pool(Samples(y[:, None].double(), y), weight)).weight
    want = [1 / 12, 1 / 6, 1 / 12, 1 / 5, 2 / 15, 1 / 3]
    torch.testing.assert_close(found, torch.tensor(want, dtype=torch.float64))


def test_mini_batches_draw_every_class_alike():
    """Of 90 samples of one class and 10 of another, each is half of the draws."""
    y = torch.arange(100) // 90
    pool = _balanced(Pool(Samples(y[:, None].double(), y), even=1.0))
    draws = pool.batches(500, torch.Generator().manual_seed(0))
    counts = sum(next(draws).y.bincount() for _ in range(20))
    assert abs(int(counts[0]) - 5000) < 150


def test_eeil_keeps_old_classes_and_its_balanced_steps_help():
    """Six tasks' worth of imbalance: few kept samples of four old classes, many of a new pair."""
    data = rings(6, 600, spread=0.25)
    task = Classification(data, Custom(f"{__name__}:double_linear"))
    world = incremental(data, (0, 1, 2, 3), (4, 5), length=6, clients=1)
    train, core = Train(lr=0.3, steps=20, batch_size=32), CoreSet(8, "herding", 8, by="class")
    old = {}
    for name, backbone, memory in [
        ("core", FedAvg(), core),
        ("eeil", Balanced(lr_factor=1.0), Distil(classes="heads", memory=core)),
    ]:
        last = trained(backbone, memory, 12, train, task, world)[-1]
        old[name] = accuracy_on(task, last, (0, 1, 2, 3))
        assert accuracy_on(task, last, (4, 5)) > 0.75
    assert old["eeil"] > old["core"]


def test_it_composes_with_wrappers():
    """Clipping and noise come after all local steps, so nothing escapes them."""
    for backbone in (Clipped(Balanced()), Balanced(Clipped()), Private(Balanced())):
        method = Method(backbone, CoreSet(8), average="clients")
        *_, last = run(method, WORLD, TASK, rounds=2, train=FULL)
        assert torch.isfinite(last.params).all()
    bound = Clipped(Balanced(), 0.01)
    first, second = trained(bound, None, 2)
    assert float((second.params - first.params).norm()) <= 0.01 + 1e-12


def test_numbers_have_bins():
    data = slopes()
    task, world = Regression(data, Linear()), Subsets(clients=2, subsets=3).on(data, seed=0)
    last = trained(Balanced(), None, 4, Train(lr=0.1, steps=5), task, world)[-1]
    assert task.score(task.objective(), last.params, last.buffers, data.test).loss < 0.3


def test_settings_that_do_not_fit():
    with pytest.raises(ValueError, match="set server_lr of the inner backbone"):
        Balanced(server_lr=0.5)
    adamw = Train(optimizer="adamw", lr=0.01, steps=5)
    with pytest.raises(IncompatibleError, match=r"^train\.optimizer: adamw undoes"):
        trained(Balanced(), train=adamw)
    trained(Balanced(lr_factor=1.0), train=adamw)
