"""The batched engine refuses every field and override that its kernel does not read."""

import dataclasses
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from chronofed import Classification, CoreSet, FedAvg, Linear, Method, Mlp, Train, run
from chronofed.clients.messages import Order
from chronofed.core.errors import IncompatibleError
from chronofed.core.stacking import stacked
from chronofed.core.types import Samples
from chronofed.engines import BatchedEngine, SerialEngine
from chronofed.engines.auto import choose
from chronofed.engines.batched.layout import OBJECTIVE_FIELDS
from chronofed.engines.batched.stack import StackedLocal
from chronofed.engines.batched.support import (
    READ_FIELDS,
    REFUSED_FIELDS,
    check_local,
    unread_field,
    unsupported,
    unsupported_orders,
)
from chronofed.methods.local import ClientLocal
from chronofed.methods.surrogate import Surrogate
from chronofed.methods.weighting import Merged
from chronofed.models.objective import TorchObjective
from chronofed.models.zoo import Custom


def falls_back(method: Method, task: Classification, reason: str, train: Train | None = None):
    """Refused with this reason by name, passed over by ``auto``, and refused by the engine itself."""
    assert unsupported(method, task, train) == reason
    choice = choose("auto", 2, task, method, cohort=4, train=train)
    assert choice.engine == "threads"
    assert f"not batched: {reason}" in choice.reason
    with pytest.raises(IncompatibleError, match=r"^engine batched: .*; use auto$"):
        choose("batched", 2, task, method, cohort=4, train=train)


# Fields


@pytest.mark.parametrize("kind", READ_FIELDS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_record_is_read_by_the_kernel(kind):
    """A new field fails here, until the kernel reads it, or is known not to: such a record is refused."""
    dataclass_fields = getattr(kind, "__dataclass_fields__", {})
    known = READ_FIELDS[kind] | REFUSED_FIELDS.get(kind, frozenset())
    assert set(getattr(kind, "__struct_fields__", dataclass_fields)) == known


def test_every_attribute_of_an_objective_is_read_by_the_kernel(task):
    assert set(vars(task.objective())) == OBJECTIVE_FIELDS


class Unforeseen(Train):
    """Local training with a setting of tomorrow."""

    accumulate: float | None = None
    lookahead: bool = False


def test_a_new_setting_of_local_training_is_refused_unless_it_is_off(task, scenario):
    assert unsupported(Method(), task, Unforeseen(lr=0.1)) is None
    reason = "Unforeseen.accumulate is set, which the kernel does not read"
    falls_back(Method(), task, reason, Unforeseen(accumulate=1.0))
    reason = "Unforeseen.lookahead is set, which the kernel does not read"
    falls_back(Method(), task, reason, Unforeseen(lookahead=True))
    with (
        BatchedEngine(task) as engine,
        pytest.raises(IncompatibleError, match=r"engine batched: Unforeseen.lookahead is set"),
    ):
        next(run(Method(), scenario, task, train=Unforeseen(lookahead=True), engine=engine))


class WithTail(Method):
    """A method with a part of tomorrow."""

    tail: str = "linear"


def test_a_new_part_of_a_method_is_refused_unless_it_is_the_default(task):
    assert unsupported(WithTail(), task) is None
    falls_back(
        WithTail(tail="cosine"), task, "WithTail.tail is set, which the kernel does not read"
    )


@dataclass(frozen=True, slots=True)
class Hurried(Order):
    """An order with a field of tomorrow."""

    deadline_s: float = 0.0
    extra: torch.Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))


def order(kind: type[Order] = Order, **others) -> Order:
    common = {"server": {}, "buffers": torch.empty(0), "weights": Merged(), "past": None}
    return kind(**{"round": 0, "client": 0, **common, "train": Train(), "seed": 0} | others)


def test_a_new_field_of_an_order_is_refused():
    assert "Hurried.deadline_s is set" in unread_field(order(Hurried, deadline_s=3.0))
    assert "Hurried.extra is set" in unread_field(order(Hurried))


def test_orders_of_a_round_that_differ_are_refused():
    first, server = order(), {"params": torch.zeros(1)}
    same = replace(first, client=1)
    assert unsupported_orders([first, same]) is None
    assert "differ" in unsupported_orders([first, replace(same, train=Train(lr=0.1))])
    assert "differ" in unsupported_orders([first, replace(same, server=server)])


@dataclass(frozen=True, slots=True)
class WeightedSamples(Samples):
    """Samples with weights of their own."""

    weight: torch.Tensor | None = None


def test_a_local_problem_with_a_field_or_type_of_its_own_is_refused(task):
    class OwnLoop(ClientLocal):
        """Descends in its own way."""

    samples = task.samples(np.arange(4))
    weighted = WeightedSamples(samples.x, samples.y, samples.rows, weight=torch.ones(4))
    common = Surrogate(), Train(), torch.Generator()
    check_local(ClientLocal(task.objective(), samples, *common))
    with pytest.raises(IncompatibleError, match="OwnLoop overrides ClientLocal"):
        check_local(OwnLoop(task.objective(), samples, *common))
    with pytest.raises(IncompatibleError, match=r"WeightedSamples\.weight is set"):
        check_local(ClientLocal(task.objective(), weighted, *common))


# Objectives


class Doubled(TorchObjective):
    """Overrides what the kernel computes itself."""

    def gradient(self, params, batch):
        return 2 * super().gradient(params, batch)


class OtherLoss(TorchObjective):
    """Another loss."""

    def _weighted(self, batch):
        return super()._weighted(batch).square()


class Encoded(TorchObjective):
    """Another encoding of samples."""

    def encode(self, x):
        return super().encode(x) / 2


class Renamed(TorchObjective):
    """Changes nothing, as far as one can see."""


@dataclass(frozen=True)
class OwnObjective(Classification):
    """A task with an objective of its own."""

    kind: type[TorchObjective] = TorchObjective

    def objective(self):
        return self.kind(super().objective().flat.module)


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        (Doubled, "gradient of TorchObjective"),
        (OtherLoss, "_weighted of TorchObjective"),
        (Encoded, "encode of TorchObjective"),
        (Renamed, "TorchObjective"),
    ],
)
def test_an_objective_that_overrides_ours_is_refused(data, kind, overrides):
    task = OwnObjective(data, Linear(), kind=kind)
    reason = f"{kind.__name__} overrides {overrides}, which the kernel does not call"
    falls_back(Method(), task, reason)
    with (
        BatchedEngine(task) as engine,
        pytest.raises(IncompatibleError, match=f"engine batched: {reason}"),
    ):
        engine._context()
    assert unsupported(Method(), OwnObjective(data, Linear())) is None


@dataclass(frozen=True)
class Patched(Classification):
    """A task that sets an attribute of its objectives."""

    attribute: str = "loss"

    def objective(self):
        objective = super().objective()
        setattr(objective, self.attribute, lambda *arguments: None)
        return objective


@pytest.mark.parametrize("attribute", ["price", "gradient", "augment"])
def test_an_attribute_of_an_objective_that_is_not_read_is_refused(data, attribute):
    task = Patched(data, Linear(), attribute=attribute)
    reason = unsupported(Method(), task)
    assert reason == f"the kernel does not read {attribute} of the objective"


def test_another_device_is_refused(data):
    task = Classification(data, Linear(), device="meta")
    reason = "the model is on meta, and the kernel runs on the CPU"
    assert unsupported(Method(), task) == reason


# Models


def hooked_container(shape, classes):
    module = Mlp((4,)).build(shape, classes)
    module.features.register_forward_hook(lambda *_: None)
    return module


def hooked_backward(shape, classes):
    module = Mlp((4,)).build(shape, classes)
    module.fc.register_full_backward_hook(lambda *_: None)
    return module


def hooked_parameter(shape, classes):
    module = Mlp((4,)).build(shape, classes)
    module.fc.weight.register_hook(lambda gradient: 2 * gradient)
    return module


def patched_forward(shape, classes):
    module = Mlp((4,)).build(shape, classes)
    module.fc.forward = lambda x: torch.tanh(nn.Linear.forward(module.fc, x))
    return module


def with_buffer(shape, classes):
    module = Mlp((4,)).build(shape, classes)
    module.register_buffer("calls", torch.zeros(1))
    return module


def other_axes(shape, classes):
    return nn.Sequential(nn.Flatten(1, 1), nn.Linear(shape[0], classes))


class Tanh(Mlp, tag="test-tanh"):
    """Overrides how the model is built."""

    def build(self, shape, classes):
        module = super().build(shape, classes)
        module.features.relu1 = nn.Tanh()
        return module


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Custom(f"{__name__}:hooked_container"), "a Sequential of the model has a hook"),
        (Custom(f"{__name__}:hooked_backward"), "a Linear of the model has a hook"),
        (Custom(f"{__name__}:hooked_parameter"), "a parameter of the model has a hook"),
        (Custom(f"{__name__}:patched_forward"), "a Linear of the model has its own forward"),
        (Custom(f"{__name__}:with_buffer"), "the model has buffers"),
        (Custom(f"{__name__}:other_axes"), "the model has a Flatten of some axes only"),
        (Tanh((4,)), "the model has a Tanh: only linear models and MLPs are batched"),
    ],
    ids=lambda value: getattr(value, "function", None),
)
def test_a_model_that_does_more_than_its_layers_is_refused(data, model, reason):
    falls_back(Method(), Classification(data, model), reason)


def test_a_hook_of_all_modules_is_refused(task):
    hook = register_module_forward_hook(lambda *_: None)
    try:
        assert unsupported(Method(), task) == "a hook is registered for all modules"
    finally:
        hook.remove()
    assert unsupported(Method(), task) is None


def plain_linear(shape, classes):
    return nn.Linear(shape[0], classes)


def test_samples_that_the_kernel_would_convert_are_refused(data):
    plain = Custom(f"{__name__}:plain_linear")
    halves, soft = (
        replace(data, train=replace(data.train, **change))
        for change in ({"x": data.train.x.double()}, {"y": data.train.y.double()})
    )
    assert unsupported(Method(), Classification(data, plain)) is None
    assert unsupported(Method(), Classification(halves, Linear())) is None
    reason = unsupported(Method(), Classification(halves, plain))
    assert reason == "samples are not of the model's dtype"
    reason = unsupported(Method(), Classification(soft, Linear()))
    assert reason == "labels are not numbers of classes"


# Methods


class OwnSurrogate(Surrogate):
    """Adds something to every gradient."""

    def add_gradient_(self, grad, params):
        grad.add_(1.0)


class Inventive(CoreSet, tag="test-inventive"):
    """Recalls in its own way."""

    def recall(self, kept, weights, moment):
        return OwnSurrogate()


class Halved(FedAvg):
    """Overrides the step."""

    def gradient(self, params, server, local):
        return local.stochastic_gradient(params) / 2


def test_a_method_with_steps_or_a_surrogate_of_its_own_falls_back(task):
    reason = "the memory's surrogate is of a type of its own"
    falls_back(Method(FedAvg(), Inventive()), task, reason)
    reason = "Halved.gradient is not declared to work on stacked clients (@stacked)"
    falls_back(Method(Halved()), task, reason)


class StackedHalved(FedAvg):
    """Overrides the step, and works on many clients."""

    @stacked
    def direction(self, grad, params, server, client):
        return grad.mul_(0.5)


def test_an_override_of_a_plain_step_is_called(task, scenario):
    """A fused step would skip it."""
    ends = []
    for kind in (SerialEngine, BatchedEngine):
        with kind(task) as engine:
            *_, last = run(Method(StackedHalved()), scenario, task, rounds=2, engine=engine)
        ends.append(last.params)
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)
    *_, other = run(Method(), scenario, task, rounds=2)
    assert not torch.allclose(other.params, ends[0], rtol=1e-3, atol=1e-3)


class Curious(FedAvg):
    """Declares too much: the steps are each client's own."""

    @stacked
    def finish(self, params, server, client, local):
        assert isinstance(local, StackedLocal)
        assert local.steps
        return super().finish(params, server, client, local)


class Thorough(FedAvg):
    """Declares too much: there is no full gradient of many clients."""

    @stacked
    def finish(self, params, server, client, local):
        local.full_gradient(params)
        return super().finish(params, server, client, local)


class Nosy(FedAvg):
    """Declares too much: there are no features of many clients."""

    @stacked
    def finish(self, params, server, client, local):
        local.objective.features(params, params)
        return super().finish(params, server, client, local)


@pytest.mark.parametrize(
    ("backbone", "what"),
    [
        (Curious(), "local.steps"),
        (Thorough(), "local.full_gradient"),
        (Nosy(), "objective.features"),
    ],
    ids=str,
)
def test_what_only_one_client_can_compute_is_refused(backbone, what, task, scenario):
    reason = f"engine batched: {what} works on one client at a time; remove @stacked"
    with BatchedEngine(task) as engine, pytest.raises(IncompatibleError, match=reason):
        next(run(Method(backbone), scenario, task, engine=engine))
