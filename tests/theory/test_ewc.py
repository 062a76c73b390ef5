"""EWC against identities and by hand, in float64."""

import pytest
import torch

from chronofed import (
    CoreSet,
    Deletion,
    Ewc,
    Exact,
    FedAvg,
    Fisher,
    Fixed,
    Forget,
    MemoryItem,
    Merged,
    Method,
    Moment,
    Optimal,
    SquaredGradient,
    Taylor,
    Uniform,
)
from chronofed.methods.memories.base import SEVERAL
from tests.helpers.quadratics import QuadraticWorld, apart, models

# Two clients with three data sets each, in two dimensions.
PARTS = [
    [[([2.0, 1.0], [2.0, 1.0])], [([1.0, 2.0], [4.0, -2.0])], [([3.0, 1.0], [0.0, 1.0])]],
    [[([1.0, 0.5], [3.0, 1.0])] * 2, [([2.0, 1.0], [-1.0, 0.0])] * 3, [([1.0, 1.0], [1.0, 4.0])]],
]


def keys(*numbers):
    return [{0: k, 1: k} for k in numbers]


def world(*numbers):
    return QuadraticWorld(PARTS, keys(*numbers), start=0.5)


def gradient(there, i, key, w):
    h, b = there.mean(i, key)
    return h * w - b


def ewc(there, rounds, strength, decay=None):
    """Written out: a list of finished tasks, and the record of the present one; squared mean gradients."""
    w = torch.full((2,), 0.5, dtype=torch.float64)
    done = {i: {} for i in range(2)}
    sums = {i: [] for i in range(2)}
    now = {}
    for t in range(rounds):
        ends = {}
        for i, visit in there.at(t).visits.items():
            key = visit.key
            if i in now and now[i][0] != key:
                old, anchor, f = now.pop(i)
                done[i][old] = anchor, f
                sums[i] = [(anchor, (decay or 0) * sums[i][0][1] + f if sums[i] else f)]
            past = sums[i] if decay else [v for k, v in done[i].items() if k != key]
            y = w
            for _ in range(3):
                pull = sum(strength * f * (y - a) for a, f in past)
                y = y - 0.1 * (gradient(there, i, key, y) + pull)
            ends[i] = y
            now[i] = key, y, gradient(there, i, key, y) ** 2
        sizes = {i: len(there.at(t).visits[i].indices) for i in ends}
        w = sum(sizes[i] * y for i, y in ends.items()) / sum(sizes.values())
        yield w


def trained(memory, there, rounds, weights=None, **others):
    method = Method(FedAvg(), memory, weights or Merged())
    return there.train(method, rounds, 0.1, 3, **others)


@pytest.mark.parametrize("weights", [Merged(), Uniform(), Fixed(0.5)], ids=str)
@pytest.mark.slow
def test_separate_written_out(weights):
    """Also with a data set that comes back, and whatever the weights that are not 0."""
    there = world(0, 0, 1, 1, 2, 0, 1)
    memory = Ewc(0.8, curvature=SquaredGradient())
    got = models(trained(memory, there, 9, weights))
    torch.testing.assert_close(got, torch.stack([*ewc(there, 9, 0.8)]), rtol=0, atol=1e-14)


@pytest.mark.parametrize("decay", [1.0, 0.25])
def test_online_written_out(decay):
    there = world(0, 0, 1, 1, 2, 2)
    memory = Ewc(0.8, "online", decay, SquaredGradient())
    got = models(trained(memory, there, 6))
    want = torch.stack([*ewc(there, 6, 0.8, decay)])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-14)


def test_online_equals_separate_up_to_the_second_boundary():
    """A data set that is present for several rounds replaces its record; were it added, it counted twice."""
    there = world(0, 0, 1, 1, 2, 2)
    one, other = (trained(Ewc(0.8, form), there, 6) for form in ("separate", "online"))
    assert apart(one[:4], other[:4]) == 0
    assert apart(one, other) > 1e-3


def test_no_strength_is_fine_tuning_and_much_strength_freezes():
    there = world(0, 1, 2)
    plain = trained(Forget(), there, 6)
    for memory in (Ewc(0.0), Ewc(0.0, "online"), Ewc(layers={"*": 0.0})):
        assert apart(trained(memory, there, 6), plain) == 0
    # The steps are small enough for the strength, and many.
    alone = QuadraticWorld([PARTS[0]], [{0: 0}, {0: 1}])
    first, second = alone.train(Method(memory=Ewc(1e6, curvature=Exact())), 2, 4e-7, 20)
    torch.testing.assert_close(second.params, first.params, rtol=0, atol=1e-5)
    assert (alone.train(Method(), 2)[-1].params - first.params).abs().max() > 0.1


def test_it_is_taylor_in_practice_without_the_gradient():
    """Data sets (h, b), (h, -b): the mean gradient at 0 vanishes, and the squares are b^2."""
    parts = [[[(1.0, 2.0), (1.0, -2.0)], [(1.0, 3.0), (1.0, 3.0)]]]
    there = QuadraticWorld(parts, [{0: 0}, {0: 1}, {0: 1}])
    taylor = Taylor(Fisher(), {"*": 0.7}, buffer=1, mode="practice")
    first, second, _ = there.train(Method(memory=Ewc(0.7)), 3)
    assert first.params.item() == 0.0
    assert apart([first, second], there.train(Method(memory=taylor), 2)) == 0
    assert abs(second.params.item() - there.train(Method(), 2)[-1].params.item()) > 0.1


def test_the_penalty_by_hand():
    """Anchors 1 and 3 with curvature 2 and 4, strength 1/2: gradient (2 (w - 1) + 4 (w - 3))/2 = 3 w - 7."""
    there = QuadraticWorld([[[(2.0, 0.0)], [(4.0, 0.0)]]])
    memory, items = Ewc(0.5, curvature=Exact()), ()
    for key, anchor in enumerate((1.0, 3.0)):
        items = remembered(memory, items, there, key, anchor)
    quadratic = memory.recall(items, Merged(), Moment(2, 7, 1)).quadratic
    assert (quadratic.linear.item(), quadratic.diagonal.item()) == (-7.0, 3.0)
    assert quadratic.scale == (1.0,)
    present = memory.recall(items, Merged(), Moment(2, 1, 1)).quadratic
    assert (present.linear.item(), present.diagonal.item()) == (-1.0, 1.0)
    # Online: curvature 2/2 + 4 = 5 around 3, times 1/2.
    online, items = Ewc(0.5, "online", 0.5, Exact()), ()
    for key, anchor in enumerate((1.0, 3.0)):
        items = remembered(online, items, there, key, anchor)
    quadratic = online.recall(items, Merged(), Moment(2, 7, 1)).quadratic
    assert (quadratic.linear.item(), quadratic.diagonal.item()) == (-7.5, 2.5)


def remembered(memory, items, there, key, *anchor):
    params = torch.tensor(anchor, dtype=torch.float64)
    samples, draws = there.samples(there.positions[0][key]), torch.Generator()
    record = memory.observe(there.objective(), params, samples, draws)
    return memory.retain(items, [MemoryItem(0, 0, key, len(samples), record)], draws)


def test_negative_sums_of_curvature_count_as_nothing():
    there = QuadraticWorld([[[([-2.0, 1.0], [0.0, 0.0])], [([1.0, 1.0], [0.0, 0.0])]]])
    memory, items = Ewc(1.0, curvature=Exact()), ()
    for key in (0, 1):
        items = remembered(memory, items, there, key, 3.0, 5.0)
    quadratic = memory.recall(items, Merged(), Moment(1, 7, 1)).quadratic
    assert quadratic.linear.tolist() == [0.0, -10.0]
    assert quadratic.diagonal.tolist() == [0.0, 2.0]


def test_only_chosen_layers_are_held():
    there = world(0, 1)
    last = trained(Ewc(5.0, layers={"w1": 1.0}), there, 2)[-1].params
    free, held = trained(Forget(), there, 2)[-1].params, trained(Ewc(5.0), there, 2)[-1].params
    assert last[0] == free[0]
    assert last[1] == held[1] != free[1]


def test_a_past_without_weight_does_not_count():
    there, nothing = world(0, 1, 2), Optimal(time_drift_sq=0.0, information_loss_sq=1.0)
    for form in ("separate", "online"):
        ends = trained(Ewc(2.0, form), there, 5, nothing)
        assert apart(ends, trained(Forget(), there, 5)) == 0


@pytest.mark.parametrize(("form", "left"), [("separate", [1, 2]), ("online", [2])])
def test_a_deleted_sample_takes_its_record_with_it(form, left):
    """Row 0 is data set 0 of client 0; it is in the sum of the form online, which goes."""
    there = world(0, 1, 2, 2)
    last = trained(Ewc(2.0, form), there, 4, deletions=[Deletion(round=3, rows=(0,))])[-1]
    assert [item.key for item in last.client_states[0].items] == left
    untouched = [item.key for item in last.client_states[1].items]
    assert untouched == ([0, 1, 2] if form == "separate" else [SEVERAL, 2])


def test_online_keeps_two_items_whatever_happens():
    there = world(0, 1, 2, 0, 1, 2)
    last = trained(Ewc(0.5, "online"), there, 6)[-1]
    for client, sizes in enumerate(([1, 1, 1], [2, 3, 1])):
        items = last.client_states[client].items
        assert [item.key for item in items] == [SEVERAL, 2]
        assert [item.size for item in items] == [2 * sum(sizes) - sizes[2], sizes[2]]


def test_settings_that_contradict_each_other():
    with pytest.raises(ValueError, match=r"Ewc\.decay: only form = 'online'"):
        Ewc(decay=0.5)
    assert hash(Ewc()) == hash(Ewc())
    assert len({Ewc(), Ewc(2.0), Ewc(layers={"fc.*": 1.0}), Ewc(form="online")}) == 4
    assert Method(memory=Ewc()).stateful
    assert CoreSet.location == Ewc.location
