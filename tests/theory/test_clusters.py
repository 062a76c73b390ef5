"""Several global models against identities, and FedDrift by hand, in float64.

With samples (1, b) the loss of a model w is ``1 + w^2/2 - b w = 1 - b^2/2 + (w - b)^2/2``.
"""

import numpy as np
import pytest
import torch

from chronofed import (
    Block,
    Clusters,
    FedCurv,
    FedOpt,
    FedProx,
    LossJump,
    Method,
    Mifa,
    Mime,
    Scaffold,
    Scores,
)
from chronofed.scenarios import Blocks
from tests.helpers.quadratics import QuadraticWorld, apart, models

A, B = [(1.0, 1.0)], [(1.0, -1.0)]
# Three clients that change between two concepts, come and go.
PARTS = [[A, A, B], [A, B, A], [[(2.0, 1.0), (1.0, 3.0)], B, A]]
KEYS = [{0: 0, 1: 0}, {0: 0, 1: 1, 2: 0}, {1: 1, 2: 1}, {0: 1, 1: 2, 2: 1}, {0: 2, 1: 2, 2: 2}]


def scores(threshold, **others) -> Scores:
    return Scores(detector=LossJump(threshold), **others)


def table(snapshot, name):
    return snapshot.server[f"cluster_{name}"].tolist()


def each(snapshot):
    """The models that are in use, by their numbers."""
    stacked = snapshot.server["model_params"][:, 0].tolist()
    return {n: w for n, w in zip(table(snapshot, "number"), stacked, strict=True) if n >= 0}


INNER = [FedProx(0.1, server_lr=0.5), Scaffold(), FedCurv(0.1), FedOpt(Mifa())]


@pytest.mark.parametrize("inner", INNER, ids=lambda b: type(b).__name__)
def test_one_model_is_the_inner_backbone_bit_for_bit(inner):
    """Whatever changes: there is no second place. Neither is it used if nothing changes."""
    there = QuadraticWorld(PARTS, KEYS, start=0.25)
    plain = there.train(Method(inner), 6)
    for wrapped in (
        Clusters(inner, models=1, assign=scores(0.0)),
        Clusters(inner, models=3, assign=scores(1e9)),
        Clusters(inner, models=1, assign=Block()),
    ):
        run = there.train(Method(wrapped), 6)
        assert apart(run, plain) == 0
        assert list(each(run[-1])) == [0]
        for i, state in run[-1].client_states.items():
            kept = plain[-1].client_states[i].backbone_state if state.backbone_state else {}
            assert all(torch.equal(state.backbone_state[name], kept[name]) for name in kept)


def test_eager_by_hand():
    """One step of 1/2 from 0, and back: client 1 leaves the others in round 1, and returns in round 2.

    Round 0: all go to 1/2, of loss 5/8. Round 1: it has loss 13/8 on B, one more, so client 1 gets a copy,
    which goes to -1/4, of loss 25/32; the other goes to 3/4. Round 2: on A, 3/4 has loss 17/32 and -1/4 41/32.
    """
    keys = [{0: 0, 1: 0}, {0: 0, 1: 1}, {0: 0, 1: 2}]
    there = QuadraticWorld([[A], [A, B, A]], keys)
    method = Method(Clusters(models=3, assign=scores(0.99)))
    first, second, third = there.train(method, 3, lr=0.5, steps=1)
    assert each(first) == {0: 0.5}
    assert first.server["assign_detector_last"].tolist() == [0.625, 0.625]
    assert each(second) == {0: 0.75, 1: -0.25}
    assert table(second, "of") == [0, 1]
    assert table(second, "steps") == [2, 1, 0]
    assert second.server["assign_detector_last"].tolist() == [0.53125, 0.78125]
    assert second.params.item() == 0.75  # as many followers, but more data sets
    assert each(third) == {0: 0.875, 1: -0.25}
    assert table(third, "of") == [0, 0]
    assert table(third, "steps") == [3, 1, 0]
    assert third.server["assign_detector_last"].tolist() == [0.5078125, 0.53125]
    # A rise of exactly the threshold is none.
    same = there.train(Method(Clusters(models=3, assign=scores(1.0))), 3, lr=0.5, steps=1)
    assert apart(same, there.train(Method(), 3, lr=0.5, steps=1)) == 0


def test_feddrift_by_hand():
    """Everybody begins alone, in one step of 1 at its minimum: 1, 0.8 and -1. Two of them are merged.

    With new data of the same kind: A_00 = 0.5, A_01 = 0.68 + 0.02, A_11 = 0.68, A_10 = 0.5 + 0.02: D = 0.2.
    """
    near = [(1.0, 0.8)]
    parts = [[A, A], [near, near], [B, B]]
    keys = [{0: 0, 1: 0, 2: 0}, {0: 1, 1: 1, 2: 1}]
    there = QuadraticWorld(parts, keys)
    for merge, together in ((0.21, True), (0.19, False)):
        assign = scores(0.1, eager=False, merge=merge)
        first, second = there.train(Method(Clusters(models=4, assign=assign)), 2, lr=1.0, steps=1)
        assert each(first) == {0: 1.0, 1: 0.8, 2: -1.0}
        assert first.server["assign_owner"].tolist() == [-1, 1, 2, -1]
        assert table(second, "of") == ([0, 0, 2] if together else [0, 1, 2])
        assert second.server["assign_owner"].tolist() == [-1] * 4
        assert table(second, "steps") == ([4, 0, 2, 0] if together else [2, 2, 2, 0])
        assert each(second) == pytest.approx({0: 0.9, 2: -1.0} if together else each(first))


def test_a_new_model_is_its_owners_own_until_the_next_data_set():
    """Clients 0 and 1 change to B in turn: 1 may not join the model of 0, and gets its own; then they merge."""
    keys = [{0: 0, 1: 0}, {0: 1, 1: 0}, {0: 1, 1: 1}, {0: 2, 1: 2}]
    there = QuadraticWorld([[A, B, B], [A, B, B]], keys)
    assign = scores(0.5, eager=False, merge=0.5)
    states = there.train(Method(Clusters(models=5, assign=assign)), 4, lr=1.0, steps=1)
    owners = [s.server["assign_owner"].tolist() for s in states]
    # Of the first round nobody's, and the second client's; merged only if both bring new data.
    assert [table(s, "of") for s in states] == [[0, 1], [2, 1], [2, 3], [2, 2]]
    assert owners == [[-1, 1, -1, -1, -1], [-1, 1, 0, -1, -1], [-1, -1, 0, 1, -1], [-1] * 5]
    eager = there.train(Method(Clusters(models=5, assign=scores(0.5))), 4, lr=1.0, steps=1)
    assert [table(s, "of") for s in eager] == [[0, 0], [1, 0], [1, 1], [1, 1]]


def test_a_state_on_the_client_belongs_to_one_model():
    """Scaffold's control of a client starts anew when it changes the model, and only then."""
    keys = [{0: 0, 1: 0}, {0: 0, 1: 1}, {0: 0, 1: 1}, {0: 0, 1: 2}]
    there = QuadraticWorld([[A], [A, B, A]], keys)
    states = there.train(Method(Clusters(Scaffold(), assign=scores(0.5))), 4, lr=0.5, steps=1)
    numbers = [s.client_states[1].backbone_state["cluster_number"].item() for s in states]
    assert numbers == [0, 1, 1, 0]
    # Scaffold II: c_i - c + (w - w_i) / (K lr). Alone with a new model, a new client's control is its gradient.
    control = states[1].client_states[1].backbone_state["control"].item()
    assert control == pytest.approx(0.5 + 1.0)
    # Of two clients one never comes: the server's control is a mean over both.
    alone = QuadraticWorld([[B], [B]], [{0: 0}], start=0.5)
    other = alone.train(Method(Scaffold()), 2, lr=0.5, steps=1)
    assert each(states[2])[1] == pytest.approx(other[1].params.item())


def test_blocks_have_models_of_their_own():
    """Of two blocks that take turns, each model is FedAvg of its block alone."""
    parts = [[A], [[(2.0, 1.0)]], [B]]
    membership = Blocks(blocks=2, length=2)
    there = [dict.fromkeys(membership.present(np.arange(3), t, 0).tolist(), 0) for t in range(8)]
    both = QuadraticWorld(parts, there).train(Method(Clusters(models=2, assign=Block(length=2))), 8)
    for number, block in enumerate(([0, 1], [2])):
        alone = QuadraticWorld([parts[i] for i in block]).train(Method(), 4)
        assert each(both[-1])[number] == alone[-1].params.item()
    assert table(both[-1], "of") == [0, 0, 1]
    # An inner backbone with two phases is served, too: nobody is asked.
    mime = QuadraticWorld(parts, there).train(
        Method(Clusters(Mime(), models=2, assign=Block(length=2))), 4
    )
    alone = QuadraticWorld(parts[2:]).train(Method(Mime()), 2)
    assert each(mime[-1])[1] == models(alone)[-1].item()


C = [(1.0, -0.25)]


@pytest.mark.parametrize("models", [2, 3])
def test_a_model_that_nobody_follows_dies_if_the_table_is_full(models):
    """One client sees A, B, C and A, in one step of 1 each, which ends at the minimum: 1, -1, -1/4, 1.

    With room for three models it returns to that of A. With two, C's takes the place of A's, as a copy of B's;
    on A again it has loss 41/32, which is 5/16 more than on C before and so no change, and B's has 5/2.
    """
    there = QuadraticWorld([[A, B, C]], [{0: 0}, {0: 1}, {0: 2}, {0: 0}])
    method = Method(Clusters(models=models, assign=scores(0.5)))
    states = there.train(method, 4, lr=1.0, steps=1)
    if models == 3:
        assert each(states[-1]) == {0: 1.0, 1: -1.0, 2: -0.25}
        assert table(states[-1], "of") == [0]
        return
    assert [table(s, "number") for s in states] == [[0, -1], [0, 1], [2, 1], [2, 1]]
    assert [table(s, "of") for s in states] == [[0], [1], [0], [0]]
    assert [each(s) for s in states[2:]] == [{2: -0.25, 1: -1.0}, {2: 1.0, 1: -1.0}]
    # The main model is the one that it follows.
    assert [s.params.item() for s in states] == [1.0, -1.0, -0.25, 1.0]


def test_a_full_table_of_models_in_use_has_no_place():
    """Client 0 changes from A to C, on which its model has loss 7/4 and the other 5/4: it joins that one.

    Its step ends in -1/4 and that of client 1 in -1, so the model of both is -5/8. Nobody trains the first.
    """
    there = QuadraticWorld([[A, C], [B, B]], [{0: 0, 1: 0}, {0: 1, 1: 1}])
    assign = scores(0.5, eager=False, merge=0.0)
    first, second = there.train(Method(Clusters(models=2, assign=assign)), 2, lr=1.0, steps=1)
    assert (each(first), table(first, "of")) == ({0: 1.0, 1: -1.0}, [0, 1])
    assert (each(second), table(second, "of")) == ({0: 1.0, 1: -0.625}, [1, 1])
    # The next score is compared with that after training, on C.
    assert second.server["assign_detector_last"].tolist() == [1 - 1 / 32, 0.5]
