"""LwF, FLwF, FLwF-2T and the losses of iCaRL and EEIL against themselves written out, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from chronofed import (
    Balanced,
    BinaryCrossEntropy,
    Classification,
    CoreSet,
    Deletion,
    Distil,
    Ewc,
    Forget,
    Generative,
    Linear,
    MemoryItem,
    Merged,
    Method,
    Mlp,
    Moment,
    Optimal,
    Regression,
    Samples,
    Subsets,
    Taylor,
    Train,
    load_data,
    run,
)
from chronofed.core.errors import SpecError
from chronofed.core.types import Batch
from chronofed.models.zoo import Custom
from tests.helpers.incremental import accuracy_on, incremental, rings
from tests.helpers.world import blobs, slopes

LR, STEPS = 0.3, 3
DATA = rings(4, 40)
FULL = Train(lr=LR, steps=STEPS, batch_size="full")
WORLD = incremental(DATA, (0, 1), (2,), (3,), length=2)


def double_linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes).double()


TASK = Classification(DATA, Custom(f"{__name__}:double_linear"))
SIGMOIDS = replace(TASK, loss=BinaryCrossEntropy())


def trained(memory, rounds=6, task=TASK, world=WORLD, train=FULL, weights=None, **others):
    method = Method(memory=memory, weights=weights or Merged())
    return list(run(method, world, task, rounds=rounds, train=train, **others))


def outputs(w, x):
    return functional.linear(x, w[:8].view(4, 2), w[8:])


def distance(z, teacher, classes, temperature=2.0):
    z, teacher = z[:, classes] / temperature, teacher[:, classes] / temperature
    return -(teacher.softmax(1) * z.log_softmax(1)).sum(1).mean()


def written_out(rounds, penalty, label_loss=functional.cross_entropy, keep=False):
    """Gradient descent of every client, with torch alone; the teacher is its model of the last other task.

    ``penalty(z, x, y, teacher, server, seen)`` is added where there is a teacher; ``seen`` lists the classes of
    the finished tasks. With ``keep``, all earlier samples are present, too.
    """
    w = TASK.initial(0)[0]
    last, teacher, past = {}, {}, {0: [], 1: []}
    for t in range(rounds):
        ends, sizes = [], []
        for i, visit in WORLD.at(t).visits.items():
            rows = torch.from_numpy(visit.indices)
            if i in last and last[i][0] != visit.key:
                teacher[i] = last[i][1]
                past[i].append(last[i][2])
            seen = [sorted(set(DATA.train.y[k].tolist())) for k in past[i]]
            every = torch.cat([rows, *past[i]]) if keep else rows
            x, y, v = DATA.train.x[every], DATA.train.y[every], w.clone()
            for _ in range(STEPS):
                u = v.clone().requires_grad_()
                z = outputs(u, x)
                loss = label_loss(z, y)
                if i in teacher:
                    loss = loss + penalty(z, y, outputs(teacher[i], x), outputs(w, x), seen)
                v = v - LR * torch.autograd.grad(loss, u)[0]
            last[i] = visit.key, v, rows
            ends.append(v)
            sizes.append(len(rows))
        w = sum(n * v for n, v in zip(sizes, ends, strict=True)) / sum(sizes)
    return w


def agrees(memory, want, task=TASK):
    got = trained(memory, task=task)[-1].params
    torch.testing.assert_close(got, want, rtol=0, atol=2e-15)


ALL = [0, 1, 2, 3]


def test_two_teachers_written_out():
    """FLwF-2T: the client's model of the last task, and the server's of the round."""

    def penalty(z, y, own, server, seen):
        return 0.7 * distance(z, own, ALL, 3.0) + 0.4 * distance(z, server, ALL, 3.0)

    agrees(Distil(0.7, 0.4, temperature=3.0), written_out(6, penalty))


@pytest.mark.parametrize("classes", ["seen", "heads"])
def test_the_classes_seen_so_far_written_out(classes):
    """One softmax over all of them, or one for those of each task: (0, 1), then 2, which says nothing alone."""

    def penalty(z, y, own, server, seen):
        groups = seen if classes == "heads" else [[c for task in seen for c in task]]
        return sum(1.5 * distance(z, own, group) for group in groups)

    agrees(Distil(1.5, classes=classes), written_out(6, penalty))


def test_the_loss_of_icarl_written_out():
    """Sigmoids; old classes have the old model's outputs as targets, on present and kept samples alike."""

    def labels(z, y):
        target = functional.one_hot(y, 4).double()
        return (
            functional.binary_cross_entropy_with_logits(z, target, reduction="none").sum(1).mean()
        )

    def penalty(z, y, own, server, seen):
        old = [c for task in seen for c in task]
        target = functional.one_hot(y, 4).double()
        mixed = target.clone()
        mixed[:, old] = own[:, old].sigmoid()
        each = functional.binary_cross_entropy_with_logits
        return (each(z, mixed, reduction="none") - each(z, target, reduction="none")).sum(1).mean()

    memory = Distil(form="targets", classes="seen", memory=CoreSet(100))
    agrees(memory, written_out(6, penalty, labels, keep=True), SIGMOIDS)


def test_the_loss_of_eeil_written_out():
    def penalty(z, y, own, server, seen):
        return sum(distance(z, own, group) for group in seen)

    want = written_out(6, penalty, keep=True)
    agrees(Distil(classes="heads", memory=CoreSet(100)), want)


def test_without_weight_it_is_fine_tuning_bit_for_bit():
    fine = trained(Forget())[-1]
    assert torch.equal(trained(Distil(0.0))[-1].params, fine.params)
    nothing = Optimal(time_drift_sq=0.0, information_loss_sq=1.0)
    for memory in (Distil(2.0, 1.0), Distil(2.0, memory=CoreSet(9)), Distil(classes="heads")):
        assert torch.equal(trained(memory, weights=nothing)[-1].params, fine.params)


def test_before_the_second_task_the_loss_is_plain():
    """There are no old classes."""
    fine = trained(Forget(), 3)
    for memory in (Distil(2.0, 3.0), Distil(classes="heads", memory=CoreSet(9, "herding"))):
        found = trained(memory, 3)
        assert torch.equal(found[1].params, fine[1].params)
        assert not torch.equal(found[2].params, fine[2].params)


def test_a_teacher_that_agrees_says_nothing():
    model = TASK.objective()
    w = TASK.initial(0)[0]
    for form in ("softmax", "sigmoid"):
        logits = model.logits(w, DATA.train.x)
        found = model.distilled(w, Batch.mean(DATA.train), logits, 2.0, None, form)
        # The sum of a softmax is 1 up to 2e-16, of which inputs over temperature and samples are left.
        assert found.abs().max() < 2e-17


def test_two_models_are_kept_and_the_classes_of_all():
    for classes, keys in (("all", [1, 2]), ("seen", [0, 1, 2])):
        items = trained(Distil(classes=classes), 6)[-1].client_states[0].items
        assert [item.key for item in items] == keys
        assert ["teacher" in item.record for item in items] == [False] * (len(keys) - 2) + [
            True
        ] * 2
    assert [item.record["teacher_classes"].tolist() for item in items] == [[0, 1], [2], [3]]


def test_a_deleted_sample_takes_its_model_with_it_and_leaves_kept_samples():
    """Row 0 is a sample of client 0's first data set."""
    gone = [Deletion(round=2, rows=(0,))]
    last = trained(Distil(memory=CoreSet(100)), 3, deletions=gone)[-1]
    for client, left in ((0, [1]), (1, [0, 1])):
        items = last.client_states[client].items
        assert [item.key for item in items if "teacher" in item.record] == left
        assert [item.key for item in items if "y" in item.record] == [0, 1]
    kept = last.client_states[0].items[0].record
    assert 0 not in kept["rows"]
    assert len(kept["rows"]) == 9


def test_the_inner_memory_is_the_same_as_alone():
    """With no weight on teachers: items, deletion of a reservoir, synthetic samples, quadratics."""
    for inner in (CoreSet(5, "reservoir"), Generative(4, 2), Ewc(), Ewc(form="online")):
        alone, inside = trained(inner)[-1], trained(Distil(0.0, memory=inner))[-1]
        assert torch.equal(alone.params, inside.params)
        own = alone.client_states[0].items
        found = inside.client_states[0].items[: len(own)]
        assert [(k.key, k.size, k.record.keys()) for k in own] == [
            (k.key, k.size, k.record.keys()) for k in found
        ]
        assert Distil(memory=inner).synthetic == inner.synthetic


def test_a_model_that_is_lost_teaches_nothing():
    """Only the classes of an older data set are left."""
    about = {"teacher_classes": torch.tensor([0]), "sources": torch.tensor([3])}
    items = (MemoryItem(0, 0, 0, 5, about),)
    assert Distil(classes="seen").recall(items, Merged(), Moment(2, 2, 5)).teachers == ()


def test_settings_that_contradict_each_other():
    for wrong, message in [
        ({"memory": Taylor()}, "Taylor is on the server"),
        ({"memory": Distil()}, "Distil has teachers itself"),
        ({"form": "targets"}, "no label is left; use 'seen'"),
        ({"form": "targets", "classes": "seen", "shared": 0.5}, "shares of 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            Distil(**wrong)
    assert hash(Distil(memory=CoreSet())) == hash(Distil(memory=CoreSet()))


def test_a_form_that_does_not_fit_is_refused_before_training():
    one = DATA.train[torch.tensor([0])]
    icarl = Distil(form="targets", classes="seen")
    with pytest.raises(SpecError, match=r"^method\.memory\.form: .* set loss = 'binary-cross"):
        icarl.check(TASK.objective(), TASK.initial(0)[0], one)
    icarl.check(SIGMOIDS.objective(), TASK.initial(0)[0], one)
    numbers = Regression(slopes(), Linear())
    some = numbers.data.train[torch.tensor([0])]
    with pytest.raises(SpecError, match="needs classes, but there is one output"):
        Distil(form="sigmoid").check(numbers.objective(), numbers.initial(0)[0], some)
    Distil().check(numbers.objective(), numbers.initial(0)[0], some)


def test_of_a_regression_the_outputs_stay():
    """Half the squared difference to the old outputs, on the present samples."""
    data = slopes(dtype=torch.float64)
    shifted = Samples(
        data.train.x, torch.where(torch.arange(len(data.train)) % 2 == 0, 3.0, -3.0).float()
    )
    task = Regression(replace(data, train=shifted), Custom(f"{__name__}:double_linear"))
    world = Subsets(clients=1, subsets=4, client_alpha=1.0).on(task.data, seed=0)
    near, far = (
        list(run(Method(memory=memory), world, task, rounds=2, train=Train(lr=0.05, steps=9)))
        for memory in (Distil(5.0), Distil(0.0))
    )
    moved = [float((second.params - first.params).norm()) for first, second in (near, far)]
    assert moved[0] < 0.7 * moved[1]


def test_the_third_class_is_learnt_while_the_old_ones_stay():
    """Blobs: the third class replaces the others after round 10 (RELATED.md, 3.4)."""
    data = blobs()
    task = Classification(data, Mlp((16,)))
    world = incremental(data, (0, 1), (2,), length=10)
    train = Train(lr=0.1, batch_size=32, steps=5)
    old = {}
    for name, memory in (("fine", Distil(0.0)), ("lwf", Distil(1.0)), ("2t", Distil(1.0, 1.0))):
        last = trained(memory, 16, task, world, train)[-1]
        old[name] = accuracy_on(task, last, (0, 1))
        assert accuracy_on(task, last, (2,)) > 0.9
    assert old["fine"] < 0.6
    assert min(old["lwf"], old["2t"]) > 0.8


IMAGES = {
    "fine-tuning": Method(),
    "ewc": Method(memory=Ewc(30.0)),
    "lwf": Method(memory=Distil(1.0)),
    "lwf, past = 4": Method(memory=Distil(4.0)),
    "flwf-2t": Method(memory=Distil(1.0, 1.0)),
    "core-set": Method(memory=CoreSet(100, "herding", 100, by="class")),
    "eeil": Method(
        Balanced(),
        Distil(classes="heads", memory=CoreSet(100, "herding", 100, by="class")),
    ),
    "icarl": Method(
        memory=Distil(
            form="targets", classes="seen", memory=CoreSet(100, "herding", 100, by="class")
        )
    ),
}


def images(method, seed):
    """Accuracy on the eight old classes at their end, on them at the end of two new ones, and on these."""
    data = load_data("fashion-mnist-mini")
    data = replace(data, train=data.train[torch.arange(seed, 10500, 5)])
    old, new = tuple(range(8)), (8, 9)
    loss = BinaryCrossEntropy() if getattr(method.memory, "form", "") == "targets" else None
    task = Classification(data, Mlp((32,)), loss=loss)
    train = Train(lr=0.03, batch_size=32, epochs=3)
    world = incremental(data, old, new, length=5, clients=3)
    snapshots = list(run(method, world, task, rounds=10, train=train, seed=seed))
    return [
        accuracy_on(task, snapshot, classes)
        for snapshot, classes in [(snapshots[4], old), (snapshots[9], old), (snapshots[9], new)]
    ]


@pytest.mark.slow
def test_images_class_after_class():
    """The figures of docs/related.md: means over three seeds."""
    found = {
        name: np.mean([images(method, seed) for seed in range(3)], 0)
        for name, method in IMAGES.items()
    }
    for name, figures in found.items():
        print(f"{name:>14}", *(f"{value:.3f}" for value in figures))
    old = {name: figures[1] for name, figures in found.items()}
    assert old["fine-tuning"] < old["ewc"] < old["lwf"] < old["lwf, past = 4"] < old["icarl"]
    assert min(old["lwf"], old["flwf-2t"]) > old["fine-tuning"] + 0.2
