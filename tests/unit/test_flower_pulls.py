"""Replies are fetched node by node: none can hold up, spoil or exhaust those of the others."""

import resource
import threading
from types import SimpleNamespace

import pytest

from chronofed.flower import pulls, transport
from chronofed.flower.messages import Message, MessageError
from chronofed.flower.pulls import MemoryLimit, Pulls
from chronofed.flower.transport import (
    HEADER,
    SMALL_BYTES,
    GridTransport,
    _content,
    from_content,
    to_content,
)


@pytest.fixture(autouse=True)
def usual_memory():
    """A reply that is still under way keeps the limit of this process."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def reply(message_id: str, to: str | None = None):
    return SimpleNamespace(
        metadata=SimpleNamespace(reply_to_message_id=to or message_id), name=message_id
    )


class Grid:
    """A grid whose replies are functions; what a node's function does is the node's fault."""

    def __init__(self, **replies) -> None:
        self.replies, self.asked = replies, []

    def pull_messages(self, message_ids):
        (message_id,) = message_ids
        self.asked.append(message_id)
        found = self.replies.get(message_id, lambda: None)()
        return [] if found is None else [found]


def fetched(grid, nodes, times=1, max_bytes=0):
    """Collect some times; return what was found, by id."""
    made = Pulls(grid)
    for message_id, node in nodes.items():
        made.expect(message_id, node)
    found = {}
    for _ in range(times):
        found |= dict(made.collect(list(nodes), max_bytes))
    return found


def raises(error):
    def fail():
        raise error

    return fail


def test_a_reply_comes_once_and_with_its_id():
    made = Pulls(Grid(a=lambda: reply("a")))
    made.expect("a", 1)
    ((message_id, found),) = made.collect(["a", "unknown"], 0)
    assert (message_id, found.name) == ("a", "a")
    assert made.collect(["a"], 0) == []


def test_a_node_that_never_ends_its_reply_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(pulls, "WAIT_S", 0.02)
    gate = threading.Event()
    grid = Grid(
        slow=lambda: gate.wait() and reply("slow"), next=lambda: reply("next"), b=lambda: reply("b")
    )
    made = Pulls(grid)
    for message_id, node in {"slow": 1, "next": 1, "b": 2}.items():
        made.expect(message_id, node)
    found = dict(made.collect(["slow"], 0)) | dict(made.collect(["slow", "next", "b"], 0))
    while len(found) < 2:
        found |= dict(made.collect(["slow", "next", "b"], 0))
    # The same node may answer its next order.
    assert found.keys() == {"next", "b"}
    assert grid.asked.count("slow") == 1
    gate.set()
    while "slow" not in found:
        found |= dict(made.collect(["slow"], 0))


def test_a_node_may_have_few_replies_under_way(monkeypatch):
    monkeypatch.setattr(pulls, "WAIT_S", 0.02)
    gate = threading.Event()
    names = [f"m{k}" for k in range(6)]
    grid = Grid(**dict.fromkeys(names, lambda: gate.wait() and None))
    made = Pulls(grid)
    for name in names:
        made.expect(name, 1)
        made.collect([name], 0)
    assert len(grid.asked) == pulls.MAX_PULLS
    gate.set()


def test_nodes_take_turns():
    names = {f"m{k}": k for k in range(20)}
    grid = Grid(**{name: lambda n=name: reply(n) for name in names})
    made = Pulls(grid)
    for name, node in names.items():
        made.expect(name, node)
    found = {}
    for _ in range(3):
        assert len(found) % pulls.NODES_AT_ONCE == 0
        found |= dict(made.collect(list(names), 0))
    assert found.keys() == names.keys()


def test_only_nodes_that_have_sent_something_are_asked():
    names = {f"m{k}": k for k in range(20)}
    grid = Grid(**{name: lambda n=name: reply(n) for name in names})
    made = Pulls(grid)
    for name, node in names.items():
        made.expect(name, node)
    assert dict(made.collect(list(names), 0, {3, 7, 99})).keys() == {"m3", "m7"}
    assert made.collect(list(names), 0, ()) == []
    assert sorted(grid.asked) == ["m3", "m7"]
    # More than are asked at once wait for the next time.
    many = set(range(8, 20))
    first = dict(made.collect(list(names), 0, many))
    assert len(first) == pulls.NODES_AT_ONCE
    assert (first | dict(made.collect(list(names), 0, ()))).keys() == {f"m{k}" for k in many}


def test_a_node_that_was_asked_too_early_is_asked_again(monkeypatch):
    """Its reply came while the question was under way."""
    monkeypatch.setattr(pulls, "WAIT_S", 0.02)
    gate, asked = threading.Event(), iter((lambda: gate.wait() and None, lambda: reply("a")))
    made = Pulls(Grid(a=lambda: next(asked)()))
    made.expect("a", 1)
    assert made.collect(["a"], 0) == []
    assert made.collect(["a"], 0, {1}) == []
    gate.set()
    found = {}
    while not found:
        found = dict(made.collect(["a"], 0, ()))
    assert found["a"].name == "a"


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), KeyError("part"), AttributeError("x"), TypeError("y"), RecursionError()],
)
def test_what_cannot_be_put_together_is_refused(error):
    found = fetched(Grid(a=raises(error), b=lambda: reply("b")), {"a": 1, "b": 2})
    assert isinstance(found["a"], MessageError)
    assert str(found["a"]).startswith("the reply cannot be put together: ")
    assert found["b"].name == "b"
    assert _content(found["a"]) is found["a"]


def test_a_node_is_not_to_blame_for_a_server_without_threads():
    error = RuntimeError("can't start new thread")
    found = fetched(Grid(a=raises(error)), {"a": 1})["a"]
    assert _content(found) == "the server was short of memory: can't start new thread"


def test_a_reply_to_another_message_is_refused():
    found = fetched(Grid(a=lambda: reply("a", to="b")), {"a": 1, "b": 2})
    assert {i: str(each) for i, each in found.items()} == {"a": "the reply is for another message"}
    assert isinstance(_content(found["a"]), MessageError)


def test_an_answer_of_the_superlink_that_is_an_error_of_the_node_is_refused():
    class StatusError(Exception):
        def __init__(self, status):
            self.response = SimpleNamespace(status_code=status)

    assert "put together" in str(fetched(Grid(a=raises(StatusError(400))), {"a": 1})["a"])
    with pytest.raises(StatusError):
        fetched(Grid(a=raises(StatusError(401))), {"a": 1})


def test_a_superlink_that_fails_is_asked_again():
    class LockedError(Exception):
        response = SimpleNamespace(status_code=500)

    answers = iter((raises(LockedError()), lambda: reply("a")))
    grid = Grid(a=lambda: next(answers)())
    found = fetched(grid, {"a": 1}, times=2)
    assert found["a"].name == "a"
    assert grid.asked == ["a", "a"]


class LockedError(Exception):
    response = SimpleNamespace(status_code=500)


class GoneError(Exception):
    response = SimpleNamespace(status_code=401)


def test_a_busy_superlink_keeps_its_nodes_and_sends_later(monkeypatch):
    """With many nodes its database is locked now and then; the run goes on."""
    made = SimpleNamespace(RecordDict=dict, ConfigRecord=dict, Message=lambda *given, ttl: given)
    monkeypatch.setattr(transport, "import_flower", lambda module: made)
    answers = iter(([1, 2], LockedError(), GoneError()))

    def next_answer(*_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    grid = GridTransport(SimpleNamespace(get_node_ids=next_answer, push_messages=next_answer))
    assert grid.nodes() == grid.nodes() == {1, 2}
    with pytest.raises(GoneError):
        grid.nodes()
    answers = iter((LockedError(), ["id"], GoneError()))
    assert grid.send([(1, Message("{}"))], 10.0) == [None]
    assert grid.send([(1, Message("{}"))], 10.0) == ["id"]
    with pytest.raises(GoneError):
        grid.send([(1, Message("{}"))], 10.0)


def test_the_end_of_the_run_is_not_taken_for_a_refusal():
    class OverError(BaseException):
        pass

    with pytest.raises(OverError):
        fetched(Grid(a=raises(OverError())), {"a": 1})
    assert resource.getrlimit(resource.RLIMIT_DATA) == MemoryLimit()._usual


def test_a_reply_that_unfolds_to_more_than_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(pulls, "SPARE_BYTES", 2**27)

    def unfold():
        content = bytearray()
        while True:
            content += bytes(2**24)

    before = resource.getrlimit(resource.RLIMIT_DATA)
    made = Pulls(Grid(a=unfold, b=lambda: reply("b")))
    made.expect("a", 1)
    made.expect("b", 2)
    found = {}
    while len(found) < 2:
        found |= dict(made.collect(["a", "b"], 0))
    assert str(found["a"]) == "the reply does not fit into the memory that replies may take"
    assert found["b"].name == "b"
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_what_is_under_way_does_not_raise_the_limit(monkeypatch):
    """A reply that comes slowly takes no more than one that comes at once; others may grow in a pause."""
    now, limits = iter((1000, 5000, 9000, 9000, 9500)), []
    monkeypatch.setattr(pulls, "_allocated_bytes", lambda: next(now))
    monkeypatch.setattr(pulls, "LEAST_BYTES", 10)
    limit = MemoryLimit()
    monkeypatch.setattr(limit, "_set", limits.append)
    for _ in range(2):
        limit.limit(100, anew=not limits)
    limit.relax()
    for _ in range(2):
        limit.limit(100, anew=False)
    assert limits[:2] == [1100, 1100]
    assert limits[2] > 2**30
    assert limits[3:] == [9010, 9010]


def test_without_proc_nothing_is_limited(monkeypatch):
    monkeypatch.setattr(pulls, "_allocated_bytes", lambda: None)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MemoryLimit()
    limit.limit(1, anew=True)
    limit.relax()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_small_body_travels_beside_its_header_and_a_large_one_in_an_array():
    flwr = pytest.importorskip("flwr.app", reason="run by: make test-flower")
    for size in (0, 1, SMALL_BYTES, SMALL_BYTES + 1):
        message = Message("{}", bytes(size))
        content = to_content(message)
        assert len(content) == (2 if size > SMALL_BYTES else 1)
        assert from_content(content) == message
    both = to_content(Message("{}", bytes(SMALL_BYTES + 1)))
    both[HEADER] = flwr.ConfigRecord({"json": "{}", "body": b"x"})
    text = flwr.RecordDict({HEADER: flwr.ConfigRecord({"json": "{}", "body": "x"})})
    for odd in (both, text):
        with pytest.raises(MessageError, match="unexpected body"):
            from_content(odd)


def test_content_that_is_no_record_of_flower_is_refused():
    class Odd:
        content = 3

        def has_error(self):
            return False

    pytest.importorskip("flwr", reason="run by: make test-flower")
    assert isinstance(_content(Odd()), MessageError)
    assert not isinstance(_content(Odd()), Message)
