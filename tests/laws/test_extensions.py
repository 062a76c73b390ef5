"""Parts from outside the package that use the extensions of the contracts obey the laws, on every engine."""

import re

import pytest
import torch

from chronofed import (
    Classification,
    Clipped,
    Deletion,
    FedAvg,
    FedOpt,
    Method,
    Optimal,
    Private,
    Stateless,
    Surrogate,
    Teacher,
    Train,
    run,
)
from chronofed.core.errors import IncompatibleError, SpecError
from chronofed.engines import BatchedEngine, ProcessEngine, SerialEngine, ThreadEngine
from chronofed.engines.auto import choose
from chronofed.engines.batched.support import unsupported
from chronofed.models.zoo import Custom
from chronofed.runs.checkpoint import decode, encode
from tests.helpers.engines import ShuffledWorkers
from tests.helpers.extended import (
    EXTENDED,
    Balanced,
    Distilling,
    Graded,
    OwnStart,
    Polished,
    StackedStart,
    Tailored,
    Tracing,
    Watched,
    label,
)
from tests.helpers.world import same
from tests.laws.test_every_engine import with_batch_norm
from tests.laws.test_flower import same as same_but_clients
from tests.laws.test_flower import world

__all__ = ["with_batch_norm", "world"]

every = pytest.mark.parametrize("method", EXTENDED, ids=label, scope="module")
TRAIN = Train(lr=0.1, batch_size=16, steps=4)


@pytest.fixture(scope="module")
def after(task, scenario):
    """Run for some rounds, with samples on the server, and return the last snapshot."""

    def after(method, rounds=4, engine=None, **others):
        others = {"scenario": scenario, "task": task, "train": TRAIN} | others
        samples = others["task"].data.test.x[:40]
        *_, last = run(method, engine=engine, rounds=rounds, server_samples=samples, **others)
        return last

    return after


@pytest.fixture(scope="module")
def straight(after):
    known = {}

    def straight(method):
        if method not in known:
            known[method] = after(method)
        return known[method]

    return straight


@pytest.fixture(scope="module")
def processes(task):
    with ProcessEngine(task, 2) as engine:
        yield engine


@every
@pytest.mark.some(4)
def test_same_bits_again_resumed_and_in_any_order(method, after, straight, task):
    whole = straight(method)
    assert same(after(method, 4, start=decode(encode(after(method, 2)))), whole)
    assert same(after(method, engine=ShuffledWorkers(task)), whole)
    assert not torch.equal(
        whole.params,
        after(
            Method(memory=method.memory) if not isinstance(method.memory, Distilling) else Method()
        ).params,
    )


@every
@pytest.mark.some(4)
def test_threads_and_processes_agree(method, after, straight, task, processes):
    with ThreadEngine(task, 2) as threads:
        assert same(after(method, engine=threads), straight(method))
    assert same(after(method, engine=processes), straight(method))


@every
@pytest.mark.some(4)
def test_flower_ends_with_the_same_bits(method, world, after):
    there = world(method)
    assert same_but_clients(after(method, 3, engine=there.engine), after(method, 3))
    assert set(there.kinds()) == {"joined"}


@every
@pytest.mark.some(4)
def test_batched_serves_or_refuses_in_one_line(method, task, after, straight):
    served = isinstance(method.backbone, StackedStart | Graded | Polished | Watched)
    reason = unsupported(method, task)
    with BatchedEngine(task) as engine:
        if served and not isinstance(method.memory, Distilling):
            assert reason is None
            other = after(method, engine=engine)
            torch.testing.assert_close(other.params, straight(method).params, rtol=1e-4, atol=1e-5)
            return
        assert "\n" not in reason
        assert choose("auto", 2, task, method, cohort=4).engine == "threads"
        with pytest.raises(IncompatibleError, match="^engine batched: " + re.escape(reason)):
            after(method, 1, engine=engine)


def test_the_reasons_of_the_batched_engine(task):
    for method, reason in [
        (
            Method(OwnStart()),
            "OwnStart.start is not declared to work on stacked clients (@stacked)",
        ),
        (Method(Tailored()), "Tailored.address sends clients different states"),
        (Method(FedOpt(Tailored())), "Tailored.address sends clients different states"),
        (
            Method(memory=Distilling()),
            "Distilling recalls teachers, which the kernel does not read",
        ),
        (Method(Balanced()), "Balanced.gradient is not declared"),
    ]:
        assert unsupported(method, task).startswith(reason), reason


class Secretive(Distilling):
    """Recalls teachers and does not say so."""

    teaches = False


def test_teachers_that_were_not_declared_are_refused_when_they_come(task, after):
    with (
        BatchedEngine(task) as engine,
        pytest.raises(IncompatibleError, match=r"Surrogate\.teachers"),
    ):
        after(Method(memory=Secretive()), engine=engine)


@every
def test_stateless_clients_are_refused_or_served(method, after, data):
    stateless = Stateless(clients=3, subsets=6, client_alpha=1.0).on(data, seed=0)
    if method.stateful:
        with pytest.raises(IncompatibleError, match="keeps its state on the client"):
            after(method, 1, scenario=stateless)
    else:
        assert after(method, 2, scenario=stateless).client_states == {}


def test_a_past_without_weight_has_no_teachers(after):
    weightless = Optimal(time_drift_sq=0.0, information_loss_sq=1.0)
    for memory in (method.memory for method in EXTENDED[-2:]):
        chosen = after(Method(memory=memory, weights=weightless))
        assert torch.equal(chosen.params, after(Method()).params)


@pytest.mark.parametrize("method", [EXTENDED[-2], EXTENDED[-1], Method(Polished())], ids=label)
def test_batch_norm_and_its_buffers(method, after, data):
    """Teachers bring their own buffers; refining leaves the mean ones alone."""
    task = Classification(data, Custom(f"{with_batch_norm.__module__}:with_batch_norm"))
    whole = after(method, 3, task=task)
    assert same(
        after(method, 3, task=task, start=decode(encode(after(method, 2, task=task)))), whole
    )
    plain = after(Method(), 3, task=task)
    assert not torch.equal(whole.params, plain.params)
    assert whole.buffers[-1] == plain.buffers[-1]  # batches that the statistics have seen


class Bare(Distilling):
    """Forgets the teacher's buffers."""

    def recall(self, kept, weights, moment):
        return (
            Surrogate(teachers=(Teacher(kept[0].record["params"], 1.0),)) if kept else Surrogate()
        )


def test_a_teacher_without_buffers_is_refused_if_the_model_has_some(after, data):
    task = Classification(data, Custom(f"{with_batch_norm.__module__}:with_batch_norm"))
    with pytest.raises(IncompatibleError, match="a teacher has none"):
        after(Method(memory=Bare()), 2, task=task)


# Privacy


INNER = [OwnStart(), Tailored(), Tracing(), Graded(), Balanced(), Polished(), Watched()]


@pytest.mark.parametrize("inner", INNER, ids=lambda part: type(part).__name__)
def test_clipped_without_a_bound_is_the_inner_backbone(inner, after):
    """Names, addresses, keys, values, offsets, notes, detectors, starts and refinement pass through."""
    bounds = {name: 1e30 for name in inner.upload_keys if name != "delta"}
    assert same(after(Method(Clipped(inner, 1e30, bounds))), after(Method(inner)))


class Addressed(FedAvg, tag="test-addressed"):
    """Sends every client a record of its own, and does not ask who answered."""

    def address(self, sent, client):
        return {"params": sent["params"] * (1 + client / 100)}


SERVED = {
    "OwnStart": Method(Private(OwnStart()), average="clients"),
    "Addressed": Method(Private(Addressed()), average="clients"),
    "Tracing": Method(Private(Tracing()), average="clients"),
    "Graded": Method(Private(Graded(), bounds={"loss": 4.0}), average="clients"),
    "Balanced": Method(Private(Balanced()), average="clients"),
    "Watched": Method(Private(Watched()), average="clients"),
    "Distilling": Method(Private(FedAvg()), Distilling(), average="clients"),
}


@pytest.mark.parametrize("method", SERVED.values(), ids=SERVED)
@pytest.mark.some(4)
def test_private_serves_what_needs_no_names(method, after, task, world):
    """The noise of a seed is the same after a resumption, in any order and on Flower."""
    whole = after(method, 3)
    assert same(after(method, 3, start=decode(encode(after(method, 2)))), whole)
    assert same(after(method, 3, engine=ShuffledWorkers(task)), whole)
    assert same_but_clients(after(method, 3, engine=world(method).engine), whole)
    bare = Method(method.backbone.backbone, method.memory, average="clients")
    assert not torch.equal(after(bare, 3).params, whole.params)


def test_private_and_clipped_send_every_client_its_own_record(after, task):
    plain = Method(Addressed(), average="clients")
    bounded = Method(Clipped(Addressed(), 1e30), average="clients")
    assert same(after(bounded, 2), after(plain, 2))
    quiet = Method(Private(Addressed(), 1e30, noise=0.0), average="clients")
    torch.testing.assert_close(after(quiet, 2).params, after(plain, 2).params)
    alike = after(Method(average="clients"), 2).params
    assert (after(plain, 2).params - alike).abs().max() > 1e-3


def test_private_hides_who_sent_an_upload(after):
    for backbone in (Private(Tailored()), FedOpt(Private(Tailored()))):
        with pytest.raises(
            IncompatibleError, match="which client sent an upload, which Private hides"
        ):
            after(Method(backbone, average="clients"), 1)


class Gossip(FedOpt, tag="test-gossip"):
    """A wrapper outside of Private that asks for names."""

    def aggregate(self, server, uploads):
        return super().aggregate(server, sorted(uploads, key=lambda upload: upload.client))


def test_a_wrapper_around_private_does_not_learn_it_either(after):
    with pytest.raises(IncompatibleError, match="which Private hides"):
        after(Method(Gossip(Private()), average="clients"), 1)
    after(Method(Gossip()), 1)


def test_private_refuses_to_refine():
    with pytest.raises(ValueError, match="refine sees what single clients sent"):
        Method(Private(Polished()), average="clients")


# Deletion


def test_what_was_made_of_a_deleted_row_goes(after, task, scenario):
    """The teacher, and the state of a backbone that names its sources; those of others stay."""
    visit = scenario.at(1).visits[1]
    gone = Deletion(round=2, rows=(int(visit.indices[0]),))
    for method in (Method(memory=Distilling()), Method(Tracing())):
        engine = SerialEngine(task)
        after(method, 2, engine=engine, train=Train(steps=1))
        before = dict(engine.client_states)
        last = after(method, 3, deletions=[gone], train=Train(steps=1))
        if method.memory.location == "client":
            keys = {k.key for k in before[1].items}
            assert visit.key in keys
            assert visit.key not in {k.key for k in last.client_states[1].items if k.round < 2}
        else:
            seen = {i: float(s.backbone_state["seen"]) for i, s in last.client_states.items()}
            assert seen[1] == 1.0
            assert max(seen.values()) > 1.0


# The server's samples


def test_a_backbone_that_needs_samples_is_refused_without(task, scenario):
    with pytest.raises(SpecError, match=r"^server_data: missing; Polished refines the model on"):
        run(Method(Polished()), scenario, task, rounds=1)


def test_refining_follows_the_seed_and_the_samples(after, task, scenario):
    first = after(Method(Polished()), 2)
    assert not torch.equal(first.params, after(Method(Polished()), 2, seed=1).params)
    *_, other = run(
        Method(Polished()),
        scenario,
        task,
        rounds=2,
        train=TRAIN,
        server_samples=task.data.test.x[40:80],
    )
    assert not torch.equal(first.params, other.params)


@every
@pytest.mark.some(3)
def test_a_deleted_client_leaves_and_the_run_resumes_without_it(method, after, straight):
    """Its state goes before the round of the request, and only its."""
    gone = [Deletion(round=2, clients=(1,))]
    whole = after(method, deletions=gone)
    half = decode(encode(after(method, 2)))
    assert same(after(method, start=half, deletions=gone), whole)
    assert set(whole.client_states) == set(straight(method).client_states) - {1}
    assert not torch.equal(whole.params, straight(method).params)


def test_every_client_gets_its_own_record_and_traffic_counts_it(after, task):
    sent = {}

    class Spy(SerialEngine):
        def map(self, method, orders, plan):
            orders = list(orders)
            sent.update({order.client: order.server["params"] for order in orders})
            yield from super().map(method, orders, plan)

    last = after(Method(Tailored()), 2, engine=Spy(task))
    assert len({tuple(params.tolist()) for params in sent.values()}) == len(sent) == 4
    assert last.traffic.down_bytes == 2 * 4 * last.params.nbytes
