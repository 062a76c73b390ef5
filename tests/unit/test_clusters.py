"""The table of several models, assignments of clients to them, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from chronofed import (
    BetaRatio,
    Block,
    Centres,
    Clipped,
    Clusters,
    FedAvg,
    FedOpt,
    LossJump,
    Method,
    Mime,
    PageHinkley,
    Private,
    Scores,
)
from chronofed.core.errors import DivergedError, SpecError
from chronofed.core.types import Samples
from chronofed.methods.backbones.base import Upload
from chronofed.methods.clusters.detection import detector_states, store_states
from chronofed.methods.clusters.merging import distances, linked
from chronofed.methods.clusters.table import Table, followed

SCORES = Scores(detector=LossJump(0.2))


def state(w: float):
    return {"params": torch.tensor([w], dtype=torch.float64)}


def table(numbers, following, assign=SCORES, round_=5, **others) -> Table:
    """A table whose model of number n is the parameter n."""
    own = dict(assign.init(len(numbers), len(following)))
    found = Table.first(state(0.0), len(numbers), len(following), own)
    found.models = [state(float(n)) for n in numbers]
    found.number, found.following, found.round = list(numbers), list(following), round_
    found.upcoming = max(numbers) + 1
    for name, value in others.items():
        setattr(found, name, value)
    return found


def known(found: Table, baseline: float = 0.3) -> Table:
    """All clients have a data set of key 0 and a best score."""
    found.own["key"] = torch.zeros(len(found.following), dtype=torch.int64)
    last = torch.tensor([baseline], dtype=torch.float64)
    store_states(found.own, [{"last": last}] * len(found.following))
    return found


def look(client, *scores, key=1, places=4, weight=1.0) -> Upload:
    """What a client sends: the score of its own model first."""
    sent = torch.zeros(places, dtype=torch.float64)
    sent[: len(scores)] = torch.tensor(scores, dtype=torch.float64) + 1
    return Upload(weight, {"key": torch.tensor(key), "scores": sent}, client)


def copied(record):
    return dict(record)


def decided(found: Table, *uploads, assign=SCORES) -> Table:
    assign.decide(found, uploads, copied)
    return found


# The table


def test_a_table_survives_packing():
    found = known(table([3, -1, 5], [2, -1, 0], steps=[4, 0, 1], last=[2, -1, 5]))
    again = Table.unpack(found.pack())
    assert again.pack().keys() == found.pack().keys()
    assert all(torch.equal(t, found.pack()[n]) for n, t in again.pack().items())
    assert (again.number, again.following, again.upcoming) == ([3, -1, 5], [2, -1, 0], 6)
    assert found.pack()["params"].item() == 3.0


@pytest.mark.parametrize(
    ("following", "steps", "main"),
    [([0, 1, 1], [9, 1, 9], 1), ([0, 1, -1], [1, 2, 9], 1), ([-1, -1, -1], [1, 1, 1], 0)],
)
def test_the_main_model_has_most_followers_then_most_data_then_age(following, steps, main):
    assert table([2, 3, 4], following, steps=steps).main == main


def test_followed_names_models_by_numbers_that_are_never_used_twice():
    found = table([3, -1, 5], [2, -1, 0])
    models, places, numbers = followed(found.pack())
    assert (places, numbers) == ({0: 2, 2: 0}, [3, -1, 5])
    assert models[:, 0].tolist() == [3.0, -1.0, 5.0]
    assert followed(state(0.0)) is None
    found.put(1, state(9.0))
    found.put(0, state(8.0))
    assert found.number == [7, 6, 5]
    assert found.following == [2, -1, -1]


def test_a_place_is_empty_or_that_of_the_least_recently_used_model():
    assert table([0, -1, 2], [0, 2]).free(idle=100) == 1
    # Nobody follows the models at 0 and 2; the one at 1 is used in this round.
    assert table([0, 1, 2], [1], last=[3, 5, 2], round_=5).free(idle=100) == 2
    # Only clients that stay away follow the one at 0.
    away = table([0, 1], [0, 1], last=[2, 5], round_=5)
    assert away.free(idle=3) is None
    assert away.free(idle=2) == 0
    # The older of two that were used last in the same round.
    assert table([4, 1], [], last=[2, 2], round_=5).free(idle=9) == 1


def test_merged_models_are_weighed_by_their_data_sets():
    found = table([4, 2, 8, 9], [0, 1, 2, 3], steps=[1, 3, 4, 7], last=[5, 1, 3, 2])
    found.models[0]["count"] = found.models[1]["count"] = found.models[2]["count"] = torch.tensor(7)
    found.merge([0, 2, 1])
    assert found.models[1]["params"].item() == pytest.approx((2 * 3 + 4 * 1 + 8 * 4) / 8)
    assert found.models[1]["count"] == 7
    assert found.number == [-1, 2, -1, 9]
    assert found.steps == [0, 8, 0, 7]
    assert (found.following, found.last[1]) == ([1, 1, 1, 3], 5)


def test_complete_linkage():
    """A chain of near pairs is not one group: its ends are too far apart."""
    chain = {(0, 1): 0.1, (1, 2): 0.2, (2, 3): 0.1, (0, 2): 0.9, (0, 3): 0.9, (1, 3): 0.9}
    assert linked(chain, 0.5) == [[0, 1], [2, 3]]
    assert linked(chain, 0.9) == [[0, 1, 2, 3]]
    assert linked(chain, 0.05) == [[0], [1], [2], [3]]
    assert linked({(2, 5): 0.3}, 0.3) == [[2, 5]]
    assert linked({}, 1.0) == []


def test_the_distance_is_that_of_the_worse_fit_and_never_negative():
    scores = {(0, 0): 0.5, (0, 1): 0.1, (1, 0): 0.7, (1, 1): 0.3}
    assert distances(scores)[0, 1] == pytest.approx(0.7 - 0.3)
    assert distances({**scores, (1, 0): 0.2})[0, 1] == 0.0
    assert distances({**scores, (0, 1): 1.1})[0, 1] == pytest.approx(1.1 - 0.5)


@pytest.mark.parametrize("detector", [LossJump(), BetaRatio(), PageHinkley()], ids=repr)
def test_states_of_detectors_of_any_length_are_kept(detector):
    values = [torch.linspace(0.1, 0.3, n) for n in (0, 1, 4)]
    states = [detector.update(detector.init(), some)[0] for some in values]
    own = {}
    store_states(own, states)
    again = detector_states(own)
    for one, other in zip(states, again, strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# Scores


def test_a_client_joins_the_best_model_without_a_change():
    found = decided(known(table([0, 1, -1, -1], [0, 0])), look(1, 0.45, 0.4))
    assert found.following == [0, 1]
    assert found.own["key"].tolist() == [0, 1]
    assert detector_states(found.own)[1]["last"].item() == pytest.approx(0.4)
    assert not found.own["fresh"].any()
    assert found.steps == [0, 1, 0, 0]


def test_clients_that_change_in_the_same_round_share_a_model_or_have_one_each():
    uploads = look(0, 0.9, 0.6), look(1, 0.8, 0.9), look(2, 0.1, 0.9)
    found = decided(known(table([0, 1, -1, -1], [0, 0, 0])), *uploads)
    assert found.following == [2, 2, 0]
    assert found.models[2] == {"params": torch.tensor([1.0])}  # the best of the first of them
    own = Scores(detector=LossJump(0.2), eager=False, merge=0.0)
    found = decided(
        known(table([0, 1, -1, -1], [0, 0, 0], steps=[3, 1, 0, 0])), *uploads, assign=own
    )
    assert found.following == [2, 3, 0]
    assert [m["params"].item() for m in found.models] == [0.0, 1.0, 1.0, 0.0]
    assert found.own["owner"].tolist() == [-1, -1, 0, 1]
    assert found.own["fresh"].tolist() == [True, True, False]


def test_a_full_table_gives_up_the_least_recently_used_or_none():
    """The client that followed it, and is away, follows none; one that found no place joins the best."""
    full = {"steps": [1, 1], "last": [4, 1], "round_": 5}
    changed = look(0, 0.9, 0.8, places=2)
    found = decided(known(table([0, 1], [0, 1], **full)), changed)
    assert found.following == [1, 1]
    assert found.number == [0, 1]
    assert found.own["fresh"].tolist() == [True, False]  # it starts to compare anew
    brief = Scores(detector=LossJump(0.2), idle=3)
    found = decided(
        known(table([0, 1], [0, 1], **(full | {"last": [4, 0]}))),
        look(0, 0.7, 0.8, places=2),
        assign=brief,
    )
    assert found.following == [1, -1]
    assert found.number == [0, 2]
    assert found.models[1]["params"].item() == 0.0
    # It comes back as one that must look at all models, whatever its data.
    server = found.pack()
    assert int(brief.question(server, 1)["cluster_known"]) == -1
    assert bool(brief.question(server, 1)["cluster_due"])


def test_a_model_that_took_the_place_of_another_is_not_merged_by_its_scores():
    """By those of the model that was at 1 before, the new one of client 2 would be like that of client 0."""
    assign = Scores(detector=LossJump(0.2), merge=0.1, idle=1)
    found = known(table([0, 1], [0, 0, 0], steps=[2, 2], last=[4, 0]))
    states = [{"last": torch.tensor([last], dtype=torch.float64)} for last in (0.85, 0.3, 0.3)]
    store_states(found.own, states)
    decided(found, look(0, 0.85, 0.9, places=2), look(2, 0.9, 0.95, places=2), assign=assign)
    assert found.number == [0, 2]
    assert found.following == [0, 0, 1]


def test_models_are_merged_by_the_scores_of_clients_with_new_data():
    """Weights of clients count: A_01 = (3 * 0.5 + 0.34) / 4 = 0.46 and A_00 = 0.3, so D = 0.16."""
    uploads = look(0, 0.3, 0.3), look(1, 0.3, 0.5, weight=3.0), look(2, 0.3, 0.34)
    for merge, following in ((0.17, [0, 0, 0]), (0.15, [0, 1, 1])):
        found = known(table([0, 1, -1, -1], [0, 1, 1], steps=[1, 1, 0, 0]))
        decided(found, *uploads, assign=Scores(detector=LossJump(0.2), merge=merge))
        assert found.following == following
        assert found.steps == ([5, 0, 0, 0] if merge > 0.16 else [2, 3, 0, 0])


def test_a_model_in_isolation_is_not_joined_before_its_owner_returns():
    own = Scores(detector=LossJump(5.0), eager=False, merge=0.0)
    found = known(table([0, 1, -1, -1], [0, 1], steps=[2, 1, 0, 0]))
    found.own["owner"][1] = 1
    decided(found, look(0, 0.9, 0.1), assign=own)
    assert found.following == [0, 1]
    decided(found, look(0, 0.9, 0.1, key=2), look(1, 0.1, 0.9, key=2), assign=own)
    assert found.following == [1, 1]
    assert found.own["owner"].tolist() == [-1] * 4


def test_clients_look_at_all_models_only_when_it_is_time():
    assign = Scores(every=3)
    found = known(table([0, 1, -1, -1], [0, -1], round_=4))
    found.own["looked"] = torch.tensor([3, 3])
    for round_, due in ((4, False), (5, False), (6, True)):
        found.round = round_
        question = assign.question(found.pack(), 0)
        assert bool(question["cluster_due"]) == due
        assert question["cluster_others"].flatten().tolist() == ([1.0] if due else [])
    # A stranger is asked at once, with a model of most followers.
    found.round = 4
    assert assign.question(found.pack(), 1)["cluster_others"].tolist() == [[1.0]]


class Losses:
    """The loss of every sample is the parameter, and so is the only logit."""

    def losses(self, params, batch):
        return params.expand(len(batch.y))

    def logits(self, params, x):
        return torch.stack([torch.zeros(len(x)).double(), params - x[:, 0]], 1)


def local(key=1, x=((0.1,), (0.3,)), y=(1, 1)):
    samples = Samples(torch.tensor(x, dtype=torch.float64), torch.tensor(y))
    return SimpleNamespace(objective=Losses(), samples=samples, key=key)


def test_a_client_measures_its_own_model_first_and_nothing_without_need():
    found = known(table([0, 1, 2, -1], [2, 0]))
    server = {**found.models[2], **SCORES.question(found.pack(), 0)}
    assert SCORES.answer(server, local(), 4)["scores"].tolist() == [3.0, 1.0, 2.0, 0.0]
    assert SCORES.answer(server, local(key=0), 4)["scores"].tolist() == [0.0] * 4
    assert int(SCORES.answer(server, local(key=7), 4)["key"]) == 7


def test_the_error_is_the_share_of_wrong_classes():
    error = Scores(score="error")
    server = {**state(0.2), "cluster_others": torch.tensor([[9.0], [0.0]]).double()}
    server |= {"cluster_due": torch.tensor(True), "cluster_known": torch.tensor(-1)}
    assert error.answer(server, local(), 3)["scores"].tolist() == [1.5, 1.0, 2.0]
    with pytest.raises(SpecError, match="'error' needs classes; use 'loss'"):
        error.answer(server, local(y=(0.5, 0.5)), 3)


def test_the_score_after_training_is_sent_as_long_as_it_is_wanted():
    found = known(table([0, 1, -1, -1], [0, 1]))
    found.own["fresh"][0] = True
    server = found.pack()
    sent = [SCORES.report(state(0.4)["params"], SCORES.told(server, i), local()) for i in (0, 1)]
    assert [each["baseline"].item() for each in sent] == [1.4, 0.0]
    SCORES.learn(found, [Upload(1.0, record, i) for i, record in enumerate(sent)])
    last = [s["last"].item() for s in detector_states(found.own)]
    assert last == pytest.approx([0.4, 0.3])


def test_a_score_that_is_not_a_number_is_the_worst():
    found = decided(known(table([0, 1, -1, -1], [0])), look(0, float("nan"), 0.4))
    assert found.following == [1]


# Deletion, and clients that join


def test_a_forgotten_client_leaves_the_table():
    backbone = Clusters(assign=SCORES)
    found = known(table([0, 1, -1, -1], [0, 1, 1]))
    found.own["owner"][1] = 2
    found.own["looked"][:] = 4
    after = Table.unpack(backbone.forget(found.pack(), [2, 9]))
    assert after.following == [0, 1, -1]
    assert after.own["key"].tolist() == [0, 0, -1]
    assert after.own["looked"].tolist() == [4, 4, -1]
    assert after.own["owner"].tolist() == [-1] * 4
    assert [len(s["last"]) for s in detector_states(after.own)] == [1, 1, 0]
    block = Clusters(assign=Block())
    first = block.init_server(torch.zeros(1), 2)
    assert block.forget(first, [0])["cluster_of"].tolist() == [-1, -1]


def test_clients_that_join_follow_no_model_yet():
    backbone = Clusters(assign=SCORES)
    server = known(table([0, 1, -1, -1], [0, 1])).pack()
    after = Table.unpack(backbone.enrol(server, 4))
    assert after.following == [0, 1, -1, -1]
    assert after.own["key"].tolist() == [0, 0, -1, -1]
    assert [len(s["last"]) for s in detector_states(after.own)] == [1, 1, 0, 0]
    fewer = Table.unpack(backbone.enrol(server, 1))
    assert (fewer.following, len(detector_states(fewer.own))) == ([0], 1)


# Centres


class Features:
    """The features are the samples."""

    def features(self, params, x, layer):
        return x


def asked(x, centres, scale=1.0):
    centres = torch.tensor(centres, dtype=torch.float64)
    server = {**state(0.0), "cluster_centres": centres, "cluster_scale": torch.tensor(scale)}
    samples = Samples(torch.tensor(x, dtype=torch.float64), torch.zeros(len(x)))
    there = SimpleNamespace(objective=Features(), samples=samples, key=0)
    return Centres().answer(server, there, 2)


def test_samples_vote_for_the_nearest_centre_and_the_first_distance_has_a_factor():
    x, centres = [[0.0, 0.0], [2.0, 0.0], [1.0, 0.0], [4.0, 0.0]], [[0.0, 0.0], [3.0, 0.0]]
    answer = asked(x, centres)
    assert answer["votes"].tolist() == [0.5, 0.5]
    assert answer["feature"].tolist() == [1.75, 0.0]
    assert asked(x, centres, scale=9.0)["votes"].tolist() == [0.25, 0.75]
    assert asked(x, centres, scale=0.1)["votes"].tolist() == [1.0, 0.0]
    assert asked(x, torch.empty(2, 0).tolist())["votes"].tolist() == [0.0, 0.0]


def vote(client, votes, feature, weight=1.0):
    record = {"votes": votes, "feature": feature}
    return Upload(weight, {n: torch.tensor(v).double() for n, v in record.items()}, client)


def test_centres_move_to_the_means_and_the_factor_towards_the_expected_share():
    """Round 2 of a day of 8: half are expected, two thirds came: s = exp(0.3 (2/3 - 1/2))."""
    assign = Centres(period=8, rate=0.3)
    found = table([0, -1], [-1] * 3, assign, round_=2)
    found.own["centres"] = torch.tensor([[0.0], [5.0]]).double()
    uploads = (
        vote(0, [0.9, 0.1], [1.0]),
        vote(1, [0.6, 0.4], [4.0], 2.0),
        vote(2, [0.2, 0.8], [7.0]),
    )
    decided(found, *uploads, assign=assign)
    assert found.following == [0, 0, 1]
    assert found.own["centres"].flatten().tolist() == [3.0, 7.0]
    assert found.own["scale"].item() == pytest.approx(np.exp(0.3 * (2 / 3 - 1 / 2)))
    assert found.number == [0, 1]
    assert found.steps == [2, 1]
    # A centre without clients stays; in the night nobody of the day is expected.
    found.round = 4
    decided(found, vote(0, [0.9, 0.1], [1.0]), assign=assign)
    assert found.own["centres"].flatten().tolist() == [1.0, 7.0]
    assert found.own["scale"].item() == pytest.approx(np.exp(0.3 * (1 / 6 + 1)))
    plain = table([0, -1], [-1], Centres(), round_=0)
    decided(plain, vote(0, [0.0, 0.0], [1.0]), assign=Centres())
    assert plain.own["scale"].item() == 1.0


def test_the_first_centres_follow_the_seed_and_the_first_clients_are_nearest_by_their_means():
    ends = {}
    for seed in (0, 0, 1):
        found = table([0, -1], [-1] * 2, Centres())
        Centres().draw(found.own, seed)
        decided(found, vote(0, [0, 0], [9.0]), vote(1, [0, 0], [-9.0]), assign=Centres())
        assert sorted(found.following) == [0, 1]
        ends.setdefault(seed, []).append(found.following)
    assert ends[0][0] == ends[0][1]


# What is refused


def test_what_does_not_go_together_is_refused_in_one_line():
    for build, text in [
        (lambda: Clusters(Clusters()), "it has several models already"),
        (lambda: Clusters(server_lr=0.5), "set server_lr of the inner backbone"),
        (lambda: Clusters(Mime()), "Mime has an exchange of its own at the start of a round"),
        (lambda: Clusters(Private()), "Private hides which client sent an upload, which Scores"),
        (lambda: Private(Clusters()), "Private.backbone: Clusters must know which client sent"),
        (lambda: Private(Clusters(assign=Centres())), "Clusters must know which client sent"),
        (
            lambda: Private(Clipped(Clusters(), bounds={"scores": 1.0, "baseline": 1.0})),
            "Clusters must know which client sent",
        ),
        (lambda: Clipped(Clusters()), "Clusters also sends scores; bound it"),
        (lambda: FedOpt(Clusters()), "put FedOpt inside it"),
        (lambda: Scores(eager=False), "models must be merged; set merge"),
        (lambda: Scores(detector=BetaRatio()), "BetaRatio finds numbers that fall"),
        (lambda: Clusters(layers=()), "length"),
    ]:
        with pytest.raises(ValueError, match=text) as caught:
            build()
        assert "\n" not in str(caught.value)


def test_blocks_are_private_as_they_need_no_names():
    Method(Private(Clusters(assign=Block())), average="clients")
    Method(Clusters(Private(), assign=Block()), average="clients")
    backbone = Clusters(FedOpt(FedAvg()), assign=Block())
    assert (backbone.names_clients, backbone.two_phase, backbone.stateful) == (False, False, True)


def test_a_model_that_is_no_longer_finite_stops_the_run():
    backbone = Clusters()
    server = backbone.init_server(torch.zeros(1), 2)
    upload = {"delta": torch.tensor([torch.inf]), "baseline": torch.zeros(()).double()}
    with pytest.raises(DivergedError, match="one of the models is no longer finite"):
        backbone.aggregate(server, [Upload(1.0, upload, 0)])
