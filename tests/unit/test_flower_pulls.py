"""Replies are fetched node by node: none can hold up, spoil or exhaust those of the others."""

import resource
import threading
from types import SimpleNamespace

import pytest

from chronofed.flower import pulls
from chronofed.flower.messages import Message, MessageError
from chronofed.flower.pulls import MemoryLimit, Pulls
from chronofed.flower.transport import _content


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


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), KeyError("part"), AttributeError("x"), TypeError("y"), RecursionError()],
)
def test_what_cannot_be_put_together_is_refused(error):
    found = fetched(Grid(a=raises(error), b=lambda: reply("b")), {"a": 1, "b": 2})
    assert found["a"].startswith("the reply cannot be put together: ")
    assert found["b"].name == "b"
    assert isinstance(_content(found["a"]), MessageError)


def test_a_reply_to_another_message_is_refused():
    found = fetched(Grid(a=lambda: reply("a", to="b")), {"a": 1, "b": 2})
    assert found == {"a": "the reply is for another message"}


def test_an_answer_of_the_superlink_that_is_an_error_of_the_node_is_refused():
    class StatusError(Exception):
        def __init__(self, status):
            self.response = SimpleNamespace(status_code=status)

    assert "put together" in fetched(Grid(a=raises(StatusError(400))), {"a": 1})["a"]
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
    assert found["a"] == "the reply does not fit into the memory that replies may take"
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


def test_content_that_is_no_record_of_flower_is_refused():
    class Odd:
        content = 3

        def has_error(self):
            return False

    pytest.importorskip("flwr", reason="run by: make test-flower")
    assert isinstance(_content(Odd()), MessageError)
    assert not isinstance(_content(Odd()), Message)
