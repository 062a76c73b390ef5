"""Valid bytes of every kind that a reader gets from elsewhere, and seeded mutations of them.

A case is one mutation of one seed: bits, lengths, fields of headers, types and shapes, numbers, rows of a
client store. Whatever it is, a reader returns something valid or raises an error of ours, within bounds.
"""

import json
import math
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from chronofed import (
    Classification,
    CoreSet,
    Ditto,
    FedProx,
    Linear,
    Method,
    Mime,
    Optimal,
    Samples,
    Scaffold,
    Taylor,
    Train,
)
from chronofed.clients.client import Client
from chronofed.clients.messages import Order, Result
from chronofed.clients.order_check import OrderCheck, OrderLimits, with_time_limit
from chronofed.clients.screening import Screen
from chronofed.clients.state import ClientState
from chronofed.clients.store import ClientStore, codec, inspect
from chronofed.clients.store.database import write_checksum
from chronofed.core.errors import ChronofedError
from chronofed.flower.codec import OrderWriter, read_order, read_result, write_result
from chronofed.flower.messages import (
    PROTOCOL,
    Message,
    MessageError,
    Request,
    read_reply,
    read_request,
    write_error,
    write_hello,
    write_identity,
)
from chronofed.methods.memories import MemoryItem
from chronofed.methods.surrogate import Pool, Quadratic, Surrogate
from chronofed.methods.weighting import Adaptive, Correlated, Covariance, Merged, Uniform
from tests.helpers.world import blobs

RUN = "0123456789abcdef"
LENGTH = 8
TRAIN = Train(steps=2, batch_size=4)
LIMITS = OrderLimits(max_steps=20, max_round_s=20.0)
EXTREMES: tuple[object, ...] = (
    *(0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, -(2**63)),
    *(0.5, 1e300, 1e-300, -1e308, math.inf, -math.inf, math.nan, True, False, None),
    *(
        "",
        "x",
        "inf",
        "F64",
        "I64",
        "BOOL",
        "/",
        "../..",
        "\0",
        "\ud800",
        "x" * 10_000,
        "os:system",
    ),
    *([], {}, [[]], [0] * 50, [1, 2, 3], [2**62, 2**62], [-1, 1], {"kind": "merged"}),
)
# Texts that no table can hold: they take the place of a mark.
MARK = "@mark@"
TEXTS = (
    "[" * 100_000,
    "[" * 5_000 + "]" * 5_000,
    '{"a":' * 500 + "0" + "}" * 500,
    "[" + "0," * 200_000 + "0]",
    "[" + "[]," * 50_000 + "[]]",
    "1" * 5_000,
    "1e400",
    "-0",
    "{",
    "\x00",
)


@dataclass(frozen=True)
class Seed:
    """Valid bytes, and the reader that they are for."""

    kind: str
    content: bytes
    read: Callable[[bytes], object]


class World:
    """A small task, and what server and clients know of it."""

    def __init__(self) -> None:
        self.data = blobs()
        self.task = Classification(self.data, Linear())
        self.samples = self.data.train[torch.arange(12)]
        self.params, self.buffers = self.task.initial(0)

    def item(self, round_: int) -> MemoryItem:
        """Return what a core set keeps of a data set."""
        kept = self.data.train[torch.arange(3) + 20 * round_]
        record = {"x": kept.x, "y": kept.y, "rows": torch.arange(3) + 20 * round_}
        return MemoryItem(round_, 1, round_, 12, record)

    def state(self, method: Method) -> ClientState:
        """Return a client's state after two rounds."""
        items = (self.item(0), self.item(1)) if isinstance(method.memory, CoreSet) else ()
        return ClientState(method.backbone.init_client(self.params), items)

    def order(self, method: Method, past: Surrogate | None = None) -> Order:
        """Return an order for the exchange that begins the third round."""
        server = method.backbone.init_server(self.params, 3)
        return Order(
            2,
            1,
            server,
            self.buffers,
            method.weights.resolve(method.weights.init()),
            past,
            TRAIN,
            seed=7,
        )

    def client(self, method: Method, order: Order, state: ClientState) -> Client:
        """Return the client with an order to work on."""
        objective = with_time_limit(self.task.objective(), LIMITS.max_round_s)
        return Client(method, order, state, objective, self.samples, key=2)


def pasts(world: World) -> list[Surrogate]:
    """Return surrogates of every form."""
    d = len(world.params)
    spans = (slice(0, 4), slice(6, d))
    quadratic = Quadratic(spans, (0.5, 1.0), torch.ones(d - 2), torch.ones(d - 2))
    kept = world.data.train[torch.arange(4)]
    weight = torch.full((4,), 0.1, dtype=torch.float64)
    replay = Pool(Samples(kept.x, kept.y), weight, None)
    return [Surrogate(0.5, quadratic=quadratic), Surrogate(0.6, replay, quadratic)]


def message_seeds(world: World) -> Iterator[Seed]:
    """Yield messages of every kind, each with the reader on the other side."""
    first, second = pasts(world)
    covariance = Covariance(((1.0, 0.1, 0.0), (0.1, 1.0, 0.1), (0.0, 0.1, 1.0)), 0.1)
    for method, past in (
        (Method(memory=CoreSet(size=3), weights=covariance), None),
        (Method(Scaffold(), CoreSet(size=3), Optimal(1.0, 0.5)), None),
        (Method(Ditto(), CoreSet(size=3), Correlated(1.0, 0.5, 0.3)), None),
        (Method(FedProx(), Taylor(), Uniform()), first),
        (Method(memory=Taylor(), weights=Adaptive()), second),
        (Method(Mime(), CoreSet(size=3), Merged()), None),
    ):
        yield from method_seeds(world, method, world.order(method, past))
    hello = write_hello(RUN)
    for message in (write_identity(read_request(hello), 1), write_error(f"{RUN}/0", 1, "no data")):
        yield Seed("header of a reply", message.pack(), lambda b: read_reply(Message.unpack(b)))
    yield Seed("hello", hello.pack(), lambda b: read_request(Message.unpack(b)))


def method_seeds(world: World, method: Method, order: Order) -> Iterator[Seed]:
    """Yield the orders and replies of one method, in both exchanges if it has two."""
    state = world.state(method)
    if method.backbone.two_phase:
        answer = world.client(method, order, state).prepare()
        yield from exchange_seeds(world, method, order, "prepare", answer)
        order = replace(order, server=method.backbone.begin(order.server, [(1.0, answer.upload)]))
    result, _ = world.client(method, order, state).serve()
    yield from exchange_seeds(world, method, order, "train", result)


def exchange_seeds(world, method, order, exchange, result) -> Iterator[Seed]:
    """Yield one order and its reply."""
    state, screen = world.state(method), Screen.on(world.task, method)

    def serve(content: bytes) -> object:
        message = Message.unpack(content)
        request = read_request(message)
        if request.kind == "hello":
            return request
        read = read_order(request, message.body, method, 10**6)
        check = OrderCheck(method, TRAIN, world.task.objective(), world.samples, LIMITS)
        problem = check.problem(read, request.kind, state)
        if problem is not None:
            raise MessageError(problem)
        client = world.client(method, read, state)
        answer = client.prepare() if request.kind == "prepare" else client.serve()[0]
        return Message.unpack(write_result(request, answer).pack())

    def receive(content: bytes) -> Result:
        message = Message.unpack(content)
        answer = read_result(read_reply(message), message.body, 10**6)
        reason = screen.check(answer, order, exchange)
        if reason is not None:
            raise MessageError(reason)
        ((clipped,), _) = screen.clip([answer], order, exchange)
        return clipped

    _, message = OrderWriter(RUN, "f").write(order, exchange)
    request = Request(PROTOCOL, exchange, RUN, "f", order.round, order.client)
    yield Seed("order", message.pack(), serve)
    yield Seed("reply", write_result(request, result).pack(), receive)


def record_seeds(world: World) -> Iterator[Seed]:
    """Yield records as a client store holds them."""
    for record in (world.item(0).record, {"control": world.params}, {}):
        yield Seed("record", codec.encode(record), codec.decode)


def store_bytes(world: World, path: Path) -> bytes:
    """Return the file of a client store that has everything in it."""
    method = Method(Scaffold(), CoreSet(size=3))
    with ClientStore(path) as client_store:
        client_store.commit("a", Message("{}", b"reply" * 99).pack(), world.state(method))
        client_store.forget(rows=[21], before=datetime(2020, 1, 1, tzinfo=UTC))
    return path.read_bytes()


def read_store(path: Path) -> None:
    """Use everything that a client store offers."""
    inspect(path)
    with ClientStore(path, limit_bytes=10_000) as client_store:
        reply = client_store.reply("a")
        if reply is not None:
            Message.unpack(reply)
        state = client_store.client_state()
        client_store.inspect()
        client_store.alias(5)
        assert client_store.forgotten_before is None or client_store.forgotten is not None
        client_store.commit("b", b"reply", state)
        client_store.forget(rows=[1, 40])


# Mutations


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return a packed message, or a record, with one to three mutations."""
    # Changes that leave the format as it is reach further, so they come more often.
    raw, formal = (flip, cut, double, lengths), (header_field, tensor_field, number) * 3
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(raw + formal)
        # A header that an earlier mutation broke cannot be changed as a header any more.
        with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            content = change(content, rng)
    return content


def flip(content: bytes, rng: random.Random) -> bytes:
    """Change a few bits."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: random.Random) -> bytes:
    """End too early, or lose a part."""
    start, stop = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:start] + (b"" if rng.random() < 0.5 else content[stop:])


def double(content: bytes, rng: random.Random) -> bytes:
    """Repeat a part, or put it elsewhere as well."""
    start, stop = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    place = rng.choice((stop, rng.randrange(len(content) + 1)))
    return content[:place] + content[start:stop] + content[place:]


def lengths(content: bytes, rng: random.Random) -> bytes:
    """Change a length field: that of the header, or that of the tensors' header."""
    place = rng.choice((0, LENGTH + int.from_bytes(content[:LENGTH], "little")))
    old = int.from_bytes(content[place : place + LENGTH], "little")
    new = rng.choice((0, 1, old - 1, old + 1, old + 8, 2**31, 2**40, 2**63, 2**64 - 1))
    return content[:place] + (new % 2**64).to_bytes(LENGTH, "little") + content[place + LENGTH :]


def header_field(content: bytes, rng: random.Random) -> bytes:
    """Change a field of the first JSON header."""
    stop = LENGTH + int.from_bytes(content[:LENGTH], "little")
    header = with_other_field(content[LENGTH:stop].decode(), rng)
    return len(header).to_bytes(LENGTH, "little") + header + content[stop:]


def tensor_field(content: bytes, rng: random.Random) -> bytes:
    """Change a field of the tensors' header."""
    stop = LENGTH + int.from_bytes(content[:LENGTH], "little")
    change = rng.choice((header_field, other_form))
    return content[:stop] + change(content[stop:], rng)


def other_form(body: bytes, rng: random.Random) -> bytes:
    """Give a tensor another type of the same size, another shape of as many numbers, or another name."""
    stop = LENGTH + int.from_bytes(body[:LENGTH], "little")
    table = json.loads(body[LENGTH:stop])
    name = rng.choice([name for name in table if name != "__metadata__"])
    entry = table[name]
    what = rng.randrange(3)
    if what == 0:
        same = {"F32": ("I32", "U32"), "F64": ("I64", "C64", "U64"), "I64": ("F64", "U64")}
        entry["dtype"] = rng.choice(same.get(entry["dtype"], ("U8", "I8")))
    elif what == 1:
        count = math.prod(entry["shape"])
        entry["shape"] = rng.choice(([count], [1, count], [count, 1], [1] * 40 + [count]))
    else:
        other = rng.choice([*table, "server/other", "upload/x", "x", ""])
        table = {(other if key == name else key): value for key, value in table.items()}
    text = json.dumps(table, separators=(",", ":")).encode()
    return len(text).to_bytes(LENGTH, "little") + text + body[stop:]


def number(content: bytes, rng: random.Random) -> bytes:
    """Overwrite some aligned bytes near the end by numbers that are not finite, or enormous."""
    value = rng.choice((math.inf, -math.inf, math.nan, 1e38, -1.0))
    part = torch.tensor(value, dtype=rng.choice((torch.float32, torch.float64))).numpy().tobytes()
    back = rng.randrange(8, min(len(content), 400), 4)
    place = len(content) - back
    return content[:place] + part + content[place + len(part) :]


def with_other_field(text: str, rng: random.Random) -> bytes:
    """Set, remove, double or swap one field, anywhere in a JSON text."""
    table = json.loads(text)
    places = list(walk(table))
    where, key = rng.choice(places)
    what = rng.randrange(6)
    if what == 0:
        del where[key]
    elif what == 1:
        there, other = rng.choice(places)
        where[key], there[other] = there[other], where[key]
    elif what == 2 and isinstance(where, dict):
        where[rng.choice(("kind", "more", "steps", "past", "x"))] = rng.choice(EXTREMES)
    elif what == 3:
        where[key] = MARK
    else:
        where[key] = rng.choice(EXTREMES)
    found = json.dumps(table, separators=(",", ":"))
    return found.replace(f'"{MARK}"', rng.choice(TEXTS)).encode("utf-8", "surrogatepass")


def walk(table: object) -> Iterator[tuple[object, object]]:
    """Yield every place in a JSON value: its container and its key."""
    keys = (
        table if isinstance(table, dict) else range(len(table)) if isinstance(table, list) else ()
    )
    for key in list(keys):
        yield table, key
        yield from walk(table[key])


def damage_store(path: Path, content: bytes, rng: random.Random) -> None:
    """Write a client store with damaged bytes, or with changed rows and a right checksum."""
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 3)):
            change = rng.choice((flip, flip, cut, double, schema_bytes, zero_page))
            content = change(content, rng) if content else content
        path.write_bytes(content)
        return
    path.write_bytes(content)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for _ in range(rng.randint(1, 2)):
            with suppress(sqlite3.Error, OverflowError, ValueError, LookupError, TypeError):
                other_row(database, rng)
        # A view without end would keep us here, too.
        views = database.execute("SELECT 1 FROM sqlite_schema WHERE type = 'view'").fetchone()
        with suppress(sqlite3.Error, OverflowError, UnicodeError):
            if views is None:
                write_checksum(database)


def schema_bytes(content: bytes, rng: random.Random) -> bytes:
    """Overwrite a byte of the first page, where the tables are described, by one that is not text."""
    place = rng.randrange(min(len(content), 16384))
    return content[:place] + bytes([rng.choice((0, 0x80, 0xFF))]) + content[place + 1 :]


def zero_page(content: bytes, rng: random.Random) -> bytes:
    """Lose a block of the disk."""
    start = 4096 * rng.randrange(len(content) // 4096 + 1)
    return content[:start] + bytes(len(content[start : start + 4096])) + content[start + 4096 :]


def other_row(database: sqlite3.Connection, rng: random.Random) -> None:
    """Change a value of a row, remove rows, or change the tables themselves."""
    table = rng.choice(("fact", "answer", "state", "record", "item", "sample", "forgotten"))
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    if database.execute("SELECT 1 FROM sqlite_schema WHERE type = 'view'").fetchone() is not None:
        return
    column = rng.choice(columns)
    values = (0, -1, 2**62, -(2**63), 1.5, math.inf, None, "", "text", b"", b"\xff" * 16)
    what = rng.randrange(8)
    if what == 0:
        database.execute(f"DELETE FROM {table}")
    elif what == 1:
        database.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO renamed")
    elif what == 2:
        database.execute(f"DROP TABLE {table}")
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
        columns = ", ".join(f"i AS {name}" for name in columns)
        database.execute(f"CREATE VIEW {table} AS SELECT {columns} FROM ({endless})")
    elif what == 3:
        other_content(database, rng)
    else:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute(f"UPDATE {table} SET {column} = ?", [rng.choice(values)])


def other_content(database: sqlite3.Connection, rng: random.Random) -> None:
    """Change a stored record, with its digest."""
    table = rng.choice(("record", "state", "answer"))
    number_, content = database.execute(f"SELECT number, content FROM {table}").fetchone()
    content = other_form(content, rng) if rng.random() < 0.5 else mutated(content, rng)
    query = f"UPDATE {table} SET digest = ?, content = ? WHERE number = ?"
    database.execute(query, [codec.digest(content), content, number_])


def outcome(read: Callable[[], object]) -> str:
    """Return what became of a case; an error that is not ours is raised."""
    try:
        read()
    except (ChronofedError, codec.RecordError) as error:
        kind, text = type(error).__name__, str(error)
    else:
        return "valid"
    assert "\n" not in text, "an error is one line"
    assert len(text) < 1000, "an error is short"
    return kind
