"""Honest replies of every method pass the screen; hostile ones are refused with a reason."""

import itertools
import operator
import statistics
from dataclasses import replace

import pytest
import torch
from torch import nn

from chronofed import (
    Adaptive,
    Backbone,
    Classification,
    Clipped,
    Compressed,
    CoreSet,
    Correlated,
    FedAvg,
    FedCurv,
    FedNova,
    FedOpt,
    FedProx,
    Fixed,
    Forget,
    Linear,
    Memory,
    Merged,
    Method,
    Mime,
    MimeLite,
    Mlp,
    Optimal,
    Private,
    Pvi,
    Scaffold,
    Taylor,
    Train,
    Uniform,
    run,
)
from chronofed.clients.screening import Screen, Screening
from chronofed.core.spec_io import alternatives
from chronofed.engines import BatchedEngine, SerialEngine
from chronofed.methods.memories import MemoryItem
from chronofed.models.zoo import Custom
from tests.helpers.methods import QUICK, name, quick_pairs, server_samples

SHIPPED = "chronofed."
BACKBONES = [c() for c in alternatives(Backbone).values() if c.__module__.startswith(SHIPPED)]
MEMORIES = [
    c(**QUICK.get(c, {})) for c in alternatives(Memory).values() if c.__module__.startswith(SHIPPED)
]
WEIGHTS = [
    Merged(),
    Uniform(),
    Fixed(0.5),
    Optimal(1.0, 0.1),
    Correlated(1.0, 0.1, 0.5),
    Adaptive(),
]
TRAIN = Train(lr=0.1, batch_size=16, steps=4)


class Watched:
    """An engine whose replies are screened; keeps the last orders and replies, and all problems."""

    def __init__(self, engine, screen):
        self.engine, self.screen, self.problems = engine, screen, []
        self.client_states = engine.client_states

    def prepare(self, method, orders, plan):
        return self._screened("prepare", method, list(orders), plan)

    def map(self, method, orders, plan):
        return self._screened("train", method, list(orders), plan)

    def _screened(self, exchange, method, orders, plan):
        work = self.engine.prepare if exchange == "prepare" else self.engine.map
        self.orders, self.results = {o.client: o for o in orders}, list(work(method, orders, plan))
        for result in self.results:
            self.problems.append(self.screen.check(result, self.orders[result.client], exchange))
        clipped, problems = self.screen.clip(self.results, orders[0], exchange)
        self.problems += problems.values()
        assert problems or all(map(operator.is_, clipped, self.results))
        return self.results


def watched(method, scenario, task, rounds=3, engine=None, settings=None) -> Watched:
    engine = Watched(engine or SerialEngine(task), Screen.on(task, method, settings))
    samples = server_samples(method, task)
    for _ in run(
        method,
        scenario,
        task,
        rounds=rounds,
        train=TRAIN,
        engine=engine,
        server_samples=samples,
    ):
        pass
    return engine


def passes(engine: Watched) -> bool:
    assert len(engine.problems) > 3
    return set(engine.problems) == {None}


def combined(backbone, memory, weights) -> Method | None:
    """A method, or nothing where a private backbone refuses the others."""
    average = "clients" if backbone.private else "samples"
    try:
        return Method(backbone, memory, weights, average)
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("backbone", "memory"),
    [
        pytest.param(b, m, marks=marks, id=f"{name(b)}-{name(m)}")
        for b, m, marks in quick_pairs(BACKBONES, MEMORIES)
    ],
)
def test_honest_replies_of_every_method_pass(backbone, memory, scenario, task):
    # Every second of the weights in turn, so that each backbone and each memory meets all of them.
    place = BACKBONES.index(backbone) + MEMORIES.index(memory)
    methods = [combined(backbone, memory, weights) for weights in WEIGHTS[place % 2 :: 2]]
    served = [method for method in methods if method is not None]
    assert len(served) == len(WEIGHTS) // 2 or backbone.private
    for number, method in enumerate(served):
        assert passes(watched(method, scenario, task, rounds=2 if number else 5))


INNER = [
    FedOpt(Scaffold()),
    Clipped(MimeLite(), bounds={"gradient": 1.0}),
    FedOpt(Clipped()),
    Compressed(Scaffold(), form="top", feedback=True),
    Clipped(Compressed(Mime(), bits=2), bounds={"gradient": 1.0}),
]


@pytest.mark.parametrize("backbone", INNER, ids=str)
def test_wrapped_backbones_pass(backbone, scenario, task):
    assert passes(watched(Method(backbone, Taylor(layers={"*": 1.0})), scenario, task))


def with_batch_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


def double(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Linear().build(shape, classes).double()


@pytest.mark.parametrize("model", ["with_batch_norm", "double"])
@pytest.mark.parametrize("memory", [Forget(), Taylor(layers={"*": 1.0})], ids=name)
def test_other_models_pass(model, memory, scenario, data):
    if model == "double":
        train, test = (replace(s, x=s.x.double()) for s in (data.train, data.test))
        data = replace(data, train=train, test=test)
    task = Classification(data, Custom(f"{__name__}:{model}"))
    assert passes(watched(Method(FedProx(), memory, Adaptive()), scenario, task))


def test_batched_replies_pass(scenario, data):
    task = Classification(data, Mlp((8,)))
    with BatchedEngine(task, workers=1) as engine:
        method = Method(Scaffold(), Taylor(layers={"*": 1.0}), Adaptive())
        assert passes(watched(method, scenario, task, engine=engine))


class Archive(CoreSet, tag=True):
    """Samples on the server: how many depends on the client."""

    location = "server"

    def recall(self, kept: tuple[MemoryItem, ...], weights, moment):
        return Forget().recall(kept, weights, moment)


def test_a_record_may_grow_with_the_samples(scenario, task):
    engine = watched(Method(memory=Archive(size=1000)), scenario, task)
    assert passes(engine)
    assert {len(result.record["y"]) for result in engine.results} == {50}  # neither 2 nor 3
    flat = replace(engine.results[0], record={**engine.results[0].record, "y": torch.zeros(2, 2)})
    problem = engine.screen.check(flat, engine.orders[flat.client])
    assert problem == "record.y: expected int64 of shape (any), got float32 of shape (2, 2)"


# --- hostile replies

FULL = Method(FedNova(), Taylor(layers={"*": 1.0}), Adaptive())


@pytest.fixture(scope="module")
def honest(scenario, task):
    return watched(FULL, scenario, task)


def changed(record, **entries):
    return {**record, **entries}


def without(record, entry):
    return {k: v for k, v in record.items() if k != entry}


def poisoned(tensor, value):
    bad = tensor.clone()
    bad[-1] = value
    return bad


NAN, INF = float("nan"), float("inf")
HOSTILE = {
    "another client": (lambda r: replace(r, client=9), "client 9 answered an order for client"),
    "NaN": (
        lambda r: replace(r, upload=changed(r.upload, delta=poisoned(r.upload["delta"], NAN))),
        "upload.delta: contains numbers that are not finite",
    ),
    "Inf": (
        lambda r: replace(r, upload=changed(r.upload, delta=poisoned(r.upload["delta"], -INF))),
        "upload.delta: contains numbers that are not finite",
    ),
    "Inf steps": (
        lambda r: replace(r, upload=changed(r.upload, steps=torch.tensor(INF).double())),
        "upload.steps: contains numbers that are not finite",
    ),
    "NaN in memory": (
        lambda r: replace(
            r, record=changed(r.record, diagonal=poisoned(r.record["diagonal"], NAN))
        ),
        "record.diagonal: contains numbers that are not finite",
    ),
    "NaN in a report": (
        lambda r: replace(r, probe=changed(r.probe, gradient=poisoned(r.probe["gradient"], NAN))),
        "probe.gradient: contains numbers that are not finite",
    ),
    "wrong shape": (
        lambda r: replace(r, upload=changed(r.upload, delta=r.upload["delta"][:-1])),
        "upload.delta: expected float32 of shape (18), got float32 of shape (17)",
    ),
    "a matrix": (
        lambda r: replace(r, upload=changed(r.upload, delta=r.upload["delta"][None])),
        "upload.delta: expected float32 of shape (18), got float32 of shape (1, 18)",
    ),
    "wrong dtype": (
        lambda r: replace(r, upload=changed(r.upload, delta=r.upload["delta"].double())),
        "upload.delta: expected float32 of shape (18), got float64 of shape (18)",
    ),
    "sparse": (
        lambda r: replace(r, upload=changed(r.upload, delta=r.upload["delta"].to_sparse())),
        "upload.delta: not a dense tensor",
    ),
    "no tensor": (
        lambda r: replace(r, upload=changed(r.upload, delta=[0.0] * 18)),
        "upload.delta: not a dense tensor",
    ),
    "buffers from nowhere": (
        lambda r: replace(r, buffers=torch.zeros(3)),
        "buffers: expected float32 of shape (0), got float32 of shape (3)",
    ),
    "additional key": (
        lambda r: replace(r, upload=changed(r.upload, more=torch.zeros(1))),
        "'upload.more': not sent by this method; a reply of another method?",
    ),
    "a key that would spoil the log": (
        lambda r: replace(r, upload=changed(r.upload, **{"\n" + "x" * 500: torch.zeros(1)})),
        r"'upload.\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx: not sent by this method; a reply of another method?",
    ),
    "missing key": (
        lambda r: replace(r, upload=without(r.upload, "steps")),
        "upload.steps: missing; a reply of another method?",
    ),
    "no record": (lambda r: replace(r, record={}), "record.linear: missing"),
    "no report": (lambda r: replace(r, probe={}), "probe.gradient: missing"),
    "a record about other parameters": (
        lambda r: replace(r, record=changed(r.record, spans=r.record["spans"] + 5)),
        "record.spans: does not match the model",
    ),
    "a record of other strength": (
        lambda r: replace(r, record=changed(r.record, strength=2 * r.record["strength"])),
        "record.strength: does not match the model",
    ),
    "negative steps": (
        lambda r: replace(r, upload=changed(r.upload, steps=-r.upload["steps"])),
        "upload.steps: contains negative numbers",
    ),
    "negative loss": (
        lambda r: replace(
            r, probe=changed(r.probe, information_loss_sq=torch.tensor(-1.0).double())
        ),
        "probe.information_loss_sq: contains negative numbers",
    ),
    "negative size": (
        lambda r: replace(r, size=-5),
        "size: expected 1 to 10000000 samples, got -5",
    ),
    "no samples": (lambda r: replace(r, size=0), "size: expected 1 to 10000000 samples, got 0"),
    "a billion samples": (lambda r: replace(r, size=10**9), "size: expected 1 to 10000000"),
    "size is no number": (lambda r: replace(r, size=2.5), "size: expected 1 to 10000000"),
    "size is True": (lambda r: replace(r, size=True), "samples, got True"),
    "a key of nobody": (
        lambda r: replace(r, key=-1),
        "key: expected a whole number from 0, got -1",
    ),
    "beyond all bounds": (
        lambda r: replace(r, upload=changed(r.upload, delta=1e9 * r.upload["delta"])),
        "is above 1e+06 (max_norm)",
    ),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_replies_are_refused_with_a_reason(attack, honest):
    change, reason = HOSTILE[attack]
    for result in honest.results:
        order = honest.orders[result.client]
        assert honest.screen.check(result, order) is None
        problem = honest.screen.check(change(result), order)
        assert reason in problem
        assert "\n" not in problem
        assert len(problem) < 150


@pytest.mark.parametrize(
    ("mine", "yours"),
    list(itertools.permutations([FedAvg(), FedNova(), Scaffold(), MimeLite(), Mime()], 2)),
    ids=name,
)
def test_another_methods_reply_is_refused(mine, yours, scenario, task):
    """Unless it looks the same: an update, and nothing else."""
    ours, theirs = (watched(Method(b), scenario, task, rounds=1) for b in (mine, yours))
    problems = {ours.screen.check(r, ours.orders[r.client]) for r in theirs.results}
    if {name(mine), name(yours)} == {"FedAvg", "Mime"}:
        assert problems == {None}
    else:
        assert all("a reply of another method?" in problem for problem in problems)


@pytest.mark.parametrize("method", [Method(), Method(Scaffold()), Method(memory=Taylor())])
def test_the_size_of_a_reply_follows_from_the_rehearsed_one(method, scenario, task):
    seen = watched(method, scenario, task, rounds=1)
    for result in seen.results:
        tensors = [result.buffers, *result.upload.values(), *result.record.values()]
        size = seen.screen.reply_bytes(seen.orders[result.client])
        assert size == sum(tensor.nbytes for tensor in tensors)


def test_a_reply_whose_size_depends_on_the_samples_has_no_known_size(scenario, task):
    seen = watched(Method(memory=Archive(size=1000)), scenario, task, rounds=1)
    assert seen.screen.reply_bytes(next(iter(seen.orders.values()))) is None


def test_another_memorys_reply_is_refused(scenario, task):
    taylor, half = Taylor(layers={"*": 1.0}), Taylor(layers={"*.weight": 1.0})
    ours, theirs = (watched(Method(memory=m), scenario, task, rounds=1) for m in (taylor, half))
    for result in theirs.results:
        problem = ours.screen.check(result, ours.orders[result.client])
        assert problem.startswith("record.linear: expected float32 of shape (18)")


def test_an_answer_to_the_other_exchange_is_refused(scenario, task):
    engine = watched(Method(Mime()), scenario, task, rounds=1)
    result = engine.results[0]
    problem = engine.screen.check(result, engine.orders[result.client], "prepare")
    assert problem == "upload.gradient: missing; a reply of another method?"


# --- clipping


def scaled(result, part, entry, factor):
    record = getattr(result, part)
    return replace(result, **{part: changed(record, **{entry: factor * record[entry]})})


def norms(results, part="upload", entry="delta"):
    return [float(getattr(result, part)[entry].double().norm()) for result in results]


@pytest.mark.parametrize(
    ("part", "entry", "setting", "factor"),
    [
        ("upload", "delta", "max_norm_factor 10", 10),
        ("upload", "steps", "max_norm_factor 10", 10),
        ("record", "linear", "max_other_factor 1000", 1000),
        ("record", "diagonal", "max_other_factor 1000", 1000),
        ("probe", "gradient", "max_other_factor 1000", 1000),
    ],
)
def test_far_larger_tensors_are_scaled_down_and_nothing_else(part, entry, setting, factor, honest):
    screen = fresh(honest)
    first, *others = honest.results
    order = honest.orders[first.client]
    hostile = scaled(first, part, entry, 1e6)
    assert screen.check(replace(hostile, upload=first.upload), order) is None
    (clipped, *same), found = screen.clip([hostile, *others], order)
    assert found.keys() == {first.client}
    assert found[first.client].startswith(f"round 2: {part}.{entry}: norm ")
    assert setting in found[first.client]
    assert "\n" not in found[first.client]
    assert all(map(operator.is_, same, others))
    allowed = factor * statistics.median_high(norms(others, part, entry))
    assert norms([clipped], part, entry)[0] == pytest.approx(allowed)
    direction = getattr(hostile, part)[entry] * (allowed / norms([hostile], part, entry)[0])
    torch.testing.assert_close(getattr(clipped, part)[entry], direction)
    for other in {"upload", "record", "probe"} - {part}:
        assert getattr(clipped, other) is getattr(hostile, other)


@pytest.mark.parametrize(("backbone", "entry"), [(FedCurv(), "fisher"), (Pvi(), "precision")])
@pytest.mark.parametrize(("factor", "clipped"), [(100, False), (100_000, True)])
def test_curvatures_differ_more_between_honest_clients(
    backbone, entry, factor, clipped, scenario, task
):
    bounds = {key: 1.0 for key in backbone.upload_keys if key != "delta"}
    method = Method(Clipped(backbone, bounds=bounds))
    honest = watched(method, scenario, task, rounds=1)
    first, *others = honest.results
    large = scaled(first, "upload", entry, factor)
    _, found = honest.screen.clip([large, *others], honest.orders[first.client])
    assert (first.client in found) == clipped


def fresh(honest, **settings) -> Screen:
    return Screen(FULL, honest.screen.objective, honest.screen.sample, Screening(**settings))


def loud(honest, number=0, factor=100.0):
    return scaled(honest.results[number], "upload", "delta", factor)


def test_half_of_a_cohort_cannot_raise_the_limit_together(honest):
    results, order = honest.results, honest.orders[honest.results[0].client]
    assert len(results) == 4
    hostile = [loud(honest, 0), loud(honest, 1)]
    assert fresh(honest).clip(results, order)[1] == {}
    clipped, found = fresh(honest).clip([*hostile, *results[2:]], order)
    assert found.keys() == {r.client for r in hostile}
    assert max(norms(clipped)) <= 10 * max(norms(results)) * (1 + 1e-6)


def test_nobody_raises_the_limit_round_by_round(honest):
    """Shouting ten times louder every time: what gets through stays where it was."""
    order, screen = honest.orders[honest.results[0].client], fresh(honest)
    for round_ in range(6):
        results = [loud(honest, 0, 10.0**round_), loud(honest, 1, 10.0**round_)]
        clipped, _ = screen.clip([*results, *honest.results[2:]], order)
        assert max(norms(clipped)) <= 10 * max(norms(honest.results)) * (1 + 1e-6)


def test_few_replies_are_measured_by_what_others_sent_before(honest):
    results, order = honest.results, honest.orders[honest.results[0].client]
    assert fresh(honest).clip([loud(honest)], order)[1] == {}  # nothing to compare with
    screen = fresh(honest)
    assert screen.clip(results[:2], order)[1] == {}
    assert screen.clip([loud(honest)], order)[1].keys() == {results[0].client}
    assert screen.clip([results[0]], order)[1] == {}


def test_a_client_that_is_always_alone_is_compared_with_itself(honest):
    order, screen = honest.orders[honest.results[0].client], fresh(honest)
    assert screen.clip([honest.results[0]], order)[1] == {}
    assert len(screen.clip([loud(honest)], order)[1]) == 1


def test_updates_may_get_small_and_large_again(honest):
    """A model that fits its data, until they change."""
    order, screen = honest.orders[honest.results[0].client], fresh(honest)
    for size in (1.0, 0.1, 0.001, 1e-5):
        quiet = [scaled(r, "upload", "delta", size) for r in honest.results]
        assert screen.clip(quiet, order)[1] == {}
    assert screen.clip([honest.results[0], *quiet[1:]], order)[1] == {}
    assert screen.clip(honest.results, order)[1] == {}


def test_what_is_known_survives_a_restart(honest):
    order = honest.orders[honest.results[0].client]
    screen, again = fresh(honest), fresh(honest)
    screen.clip(honest.results, order)
    again.load_state_dict(screen.state_dict())
    one, other = (s.clip([loud(honest)], order) for s in (again, screen))
    assert one[1] == other[1] != {}
    assert torch.equal(one[0][0].upload["delta"], other[0][0].upload["delta"])


def test_only_some_clients_are_remembered_the_latest(honest):
    order, screen = honest.orders[honest.results[0].client], fresh(honest, history=2)
    for result in honest.results:
        screen.clip([result], order)
    (known,) = [t for name, t in screen.state_dict().items() if name == "train upload.delta"]
    assert known[:, 0].tolist() == [2, 3]


def test_the_largest_norm_is_a_bound_of_its_own(honest):
    """A norm just above it is refused, however far it is from other bounds."""
    result = honest.results[0]
    norm = max(float(tensor.double().norm()) for tensor in result.upload.values())
    order = honest.orders[result.client]
    assert fresh(honest, max_norm=1.01 * norm).check(result, order) is None
    assert "(max_norm)" in fresh(honest, max_norm=0.99 * norm).check(result, order)


def test_settings_decide(honest):
    order = honest.orders[honest.results[0].client]
    hostile = [scaled(honest.results[0], "upload", "delta", 100), *honest.results[1:]]
    assert fresh(honest, max_norm_factor=1e4).clip(hostile, order)[1] == {}
    assert "(max_norm)" in fresh(honest, max_norm=1e-6).check(honest.results[0], order)
    assert "1 to 3 samples" in fresh(honest, max_size=3).check(honest.results[0], order)
    with pytest.raises(ValueError, match="max_norm_factor"):
        Screening(max_norm_factor=1.0)


def test_a_dry_run_changes_nothing(honest):
    order = honest.orders[honest.results[0].client]
    before = {name: tensor.clone() for name, tensor in order.server.items()}
    state = torch.get_rng_state()
    assert fresh(honest).check(honest.results[0], order) is None
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(dict(order.server), before, rtol=0, atol=0)


def test_the_sample_need_not_be_real(honest, task):
    """A server without data makes one up."""
    sample = replace(honest.screen.sample, x=torch.zeros(1, 5), y=torch.zeros(1, dtype=torch.int64))
    screen = Screen(FULL, task.objective(), sample)
    for result in honest.results:
        assert screen.check(result, honest.orders[result.client]) is None


def test_private_replies_pass(scenario, task):
    private = Private(Scaffold(), bounds={"control": 1.0}, noise=0.1)
    assert passes(watched(Method(private, CoreSet(), average="clients"), scenario, task))
