"""Messages between server and client on Flower: nothing is lost, nothing is trusted."""

import json
from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chronofed import Experiment, FedProx, Merged, Method, Mlp, Optimal, Samples, Train
from chronofed.clients.messages import Order, Result
from chronofed.core.limits import MAX_JSON_CHARACTERS, MESSAGE_HEADER
from chronofed.core.spec_io import alternatives
from chronofed.flower.codec import (
    OrderWriter,
    encode_tensors,
    read_order,
    read_result,
    write_result,
)
from chronofed.flower.messages import (
    PROTOCOL,
    Message,
    MessageError,
    Reply,
    Request,
    method_fingerprint,
    read_reply,
    read_request,
)
from chronofed.methods.surrogate import Pool, Quadratic, Surrogate
from chronofed.methods.weighting import (
    Adaptive,
    Bounded,
    Correlated,
    Covariance,
    Fixed,
    RoundWeights,
    Timeline,
    Uniform,
)

RUN = "0123456789abcdef"


def order(**changes) -> Order:
    server = {"params": torch.randn(6), "clients": torch.tensor(4.0, dtype=torch.float64)}
    start = Order(3, 1, server, torch.zeros(0), Merged(), None, Train(steps=4, lr=0.1), 7)
    return replace(start, **changes)


def there_and_back(sent: Order) -> Order:
    _, message = OrderWriter(RUN, "m").write(sent, "train")
    message = Message.unpack(message.pack())
    return read_order(read_request(message), message.body, Method(weights=sent.weights))


def equal(one: object, other: object) -> bool:
    """Deep equality of what an order is made of; tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, Pool):
        return all(equal(getattr(one, n), getattr(other, n)) for n in ("samples", "weight", "even"))
    if hasattr(one, "__slots__") and not isinstance(one, msgspec.Struct | slice | str | tuple):
        return type(one) is type(other) and all(
            equal(getattr(one, n), getattr(other, n)) for n in type(one).__dataclass_fields__
        )
    return one == other


QUADRATIC = Quadratic((slice(0, 2), slice(3, 5)), (0.1, 1 / 3), torch.randn(4), torch.randn(4))
REPLAY = Pool(
    Samples(torch.randint(0, 255, (3, 2, 2), dtype=torch.uint8), torch.tensor([0, 2, 1])),
    torch.rand(3, dtype=torch.float64),
    None,
)


@pytest.mark.parametrize(
    "past",
    [
        None,
        Surrogate(),
        Surrogate(1 / 3, quadratic=QUADRATIC),
        Surrogate(0.7, replay=REPLAY),
        Surrogate(0.1, Pool(REPLAY.samples, REPLAY.weight, 2 / 3), QUADRATIC),
    ],
)
def test_the_past_travels(past):
    sent = order(past=past)
    assert equal(there_and_back(sent), sent)


WEIGHTS = [
    Merged(),
    Uniform(),
    Optimal(time_drift_sq=1.0, information_loss_sq=0.5),
    Optimal(time_drift_sq=1 / 3, information_loss_sq=1e300),
    Correlated(1.0, 0.5, 0.3),
    Bounded(1.0, 0.5, 1 / 3),
    Covariance(((1.0, 0.1), (0.1, 1.0)), information_loss_sq=0.1),
    Fixed(0.3),
    Adaptive(),
]


@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda w: type(w).__name__)
def test_round_weights_travel(weights):
    assert there_and_back(order(weights=weights)).weights == weights


def test_all_built_in_weights_are_tried():
    tried = {type(weights) for weights in WEIGHTS}
    shipped = {
        c for c in alternatives(RoundWeights).values() if c.__module__.startswith("chronofed.")
    }
    assert shipped <= tried


class Mine(RoundWeights, tag="mine-on-the-wire"):
    def __call__(self, timeline: Timeline):
        return Merged()(timeline)


def test_custom_weights_are_accepted_only_by_clients_that_have_them():
    assert there_and_back(order(weights=Mine())).weights == Mine()
    _, message = OrderWriter(RUN, "m").write(order(weights=Mine()), "train")
    with pytest.raises(MessageError, match="neither built in nor in this client's specification"):
        read_order(read_request(message), message.body, Method())


def test_all_clients_of_a_round_share_the_body():
    writer, first = OrderWriter(RUN, "m"), order()
    (one, a), (other, b) = (
        writer.write(first, "train"),
        writer.write(replace(first, client=2), "train"),
    )
    assert a.body is b.body
    assert (one, other) == (f"{RUN}/3/train/1", f"{RUN}/3/train/2")


def test_a_new_round_is_encoded_again():
    writer, first = OrderWriter(RUN, "m"), order()
    writer.write(first, "train")
    _, message = writer.write(replace(first, server={"params": torch.ones(6)}), "train")
    read = read_order(read_request(message), message.body, Method())
    assert torch.equal(read.server["params"], torch.ones(6))


def test_results_travel():
    request = Request(PROTOCOL, "train", RUN, "m", 3, 1)
    delta = torch.randn(6)
    result = Result(
        1, 5, 40, {"delta": delta}, torch.ones(2), {"h": torch.ones(1)}, {"loss": torch.ones(())}
    )
    message = write_result(request, result)
    reply = read_reply(message)
    assert (reply.name, reply.fingerprint) == (request.name, "m")
    assert equal(read_result(reply, message.body), result)


def test_the_fingerprint_is_of_method_and_model_only():
    plain = method_fingerprint(Experiment())
    assert plain == method_fingerprint(Experiment(name="other", seed=3, rounds=9))
    assert plain != method_fingerprint(Experiment(method=Method(FedProx())))
    assert plain != method_fingerprint(Experiment(model=Mlp(hidden=(3,))))


BODY = OrderWriter(RUN, "m").write(order(past=Surrogate(1.0, quadratic=QUADRATIC)), "train")[1].body
HEADER = json.loads(
    OrderWriter(RUN, "m").write(order(past=Surrogate(1.0, quadratic=QUADRATIC)), "train")[1].header
)


def changed(**changes) -> str:
    return json.dumps({**HEADER, **changes})


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("", "malformed header"),
        ("[]", "protocol None"),
        ("[" * 100_000, "malformed header"),
        (changed(protocol=1), "protocol 1, but this side uses 4"),
        (changed(kind="sing"), "malformed header"),
        (changed(more=1), "malformed header"),
        (changed(round="3"), "malformed header"),
        (changed(run="../../etc/passwd"), "invalid name of a run: '../../etc/passwd'"),
        (" " * (MAX_JSON_CHARACTERS + 1), "at most 16777216 are accepted"),
    ],
    ids=range(9),
)
def test_bad_headers_are_refused_in_one_line(header, problem):
    with pytest.raises(MessageError, match=problem) as error:
        read_request(Message(header))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {**HEADER["order"], "weights": {"kind": "os:system"}},
        {**HEADER["order"], "weights": {"kind": "none-such"}},
        {**HEADER["order"], "train": {"lr": -1}},
        {**HEADER["order"], "seed": "x"},
        {**HEADER["order"], "past": {"present": 1.0}},
        {**HEADER["order"], "past": {**HEADER["order"]["past"], "spans": [[3, 5], [0, 2]]}},
        {**HEADER["order"], "past": {**HEADER["order"]["past"], "spans": [[0, 4]]}},
    ],
    ids=range(8),
)
def test_bad_orders_are_refused(about):
    request = read_request(Message(changed(order=about)))
    with pytest.raises(MessageError):
        read_order(request, BODY, Method())


def test_sizes_are_bounded():
    request = read_request(Message(json.dumps(HEADER)))
    with pytest.raises(MessageError, match=f"body too large: {len(BODY)} bytes, at most 10"):
        read_order(request, BODY, Method(), max_bytes=10)
    many = {f"server/{k}": torch.zeros(0) for k in range(MESSAGE_HEADER.max_tensors + 1)}
    with pytest.raises(MessageError, match="more than 10000 tensors"):
        read_order(request, encode_tensors(many), Method())


def test_tensors_must_not_share_bytes():
    """A few bytes must not become gigabytes."""
    place = {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]}
    header = json.dumps({f"server/{k}": place for k in range(50)}, separators=(",", ":")).encode()
    body = len(header).to_bytes(8, "little") + header + bytes(100)
    with pytest.raises(MessageError, match="overlap"):
        read_result(Reply(PROTOCOL, "x"), body)


def test_a_result_has_no_other_parts():
    body = encode_tensors({"model/buffers": torch.zeros(0), "extra/x": torch.zeros(1)})
    with pytest.raises(MessageError, match="unexpected parts in the reply: extra"):
        read_result(Reply(PROTOCOL, "x"), body)


@given(st.data())
def test_damaged_bodies_never_raise_anything_else(data):
    body = bytearray(BODY)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    request = read_request(Message(json.dumps(HEADER)))
    for content in (bytes(body), cut):
        with suppress(MessageError):
            read_order(request, content, Method())
