"""An engine whose clients are elsewhere: orders go out as letters, and not every one is answered.

A round ends when all have answered; when its deadline has passed and a quorum has answered; or when a quorum
has answered and nobody else is there. An order has a name that is the same however often it is sent, and a
client that has carried it out already sends the same answer again. So it is always safe to ask again: after an
error, after the client's node came back under another number, or after the server itself came back.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chronofed.engines.base import Exchange
from chronofed.errors import RunError
from chronofed.flower import wire
from chronofed.flower.settings import Federation
from chronofed.flower.wire import Letter, WireError
from chronofed.protocol import Locker, Method, Order, Result
from chronofed.scenarios.base import Plan
from chronofed.types import Record, Task

ROLL_CALL = 3.0  # seconds between two looks at who is there, from the second round on
PAUSE = 5.0  # seconds before clients that all failed are asked again
GREETINGS = 3  # how often a node is asked who it is

Note = Callable[[Mapping[str, Any]], None]


class Mail(Protocol):
    """Carries letters to nodes and back."""

    def nodes(self) -> set[int]:
        """Nodes that are there now."""
        ...

    def send(self, letters: Sequence[tuple[int, Letter]], seconds: float) -> list[str | None]:
        """Send letters to nodes: the number of each, ``None`` where it failed; they expire in time."""
        ...

    def collect(self, numbers: Iterable[str]) -> list[tuple[str, Letter | str]]:
        """The answers to some letters that have come in, each once; a text where there is an error instead."""
        ...


class Judge(Protocol):
    """Decides what may be aggregated."""

    def check(self, result: Result, order: Order, exchange: Exchange) -> str | None:
        """Why a result is refused, by itself; ``None`` if it is not."""
        ...

    def outliers(
        self, results: Sequence[Result], order: Order, exchange: Exchange
    ) -> dict[int, str]:
        """Why results are refused, beside the others, by client."""
        ...

    def remembered(self) -> Record:
        """What it has learned about usual results."""
        ...

    def recall(self, remembered: Record) -> None:
        """Go on from what :meth:`remembered` gave."""
        ...


@dataclass(slots=True)
class Errand:
    """One client's order in one exchange.

    Attributes:
        exchange: Of which of a round's two exchanges.
        order: What it is to do.
        name: The order's name.
        letter: The letter.
        node: Where it was sent.
        number: Under which number; ``None`` while it is not under way.
        failures: How often it failed.
        result: The answer.
        refused: Whether an answer came that is not to be used.
    """

    exchange: Exchange
    order: Order
    name: str
    letter: Letter
    node: int | None = None
    number: str | None = None
    failures: int = 0
    result: Result | None = None
    refused: bool = False


@dataclass(slots=True)
class FlowerEngine:
    """Carries orders to clients on other machines.

    Attributes:
        task: What is learned; for evaluation, and never sent.
        mail: How to reach nodes.
        run: Name of the run, which clients keep their memory under.
        method: Fingerprint of the method.
        judge: Decides what may be aggregated.
        settings: How clients are waited for.
        note: Told of everything that is not as it should be.
        lockers: Always empty: what clients keep stays with them.
        counts: What happened so far, by kind of event.
    """

    task: Task
    mail: Mail
    run: str
    method: str
    judge: Judge
    settings: Federation = Federation()  # noqa: RUF009 - immutable
    note: Note = field(default=lambda event: None)  # noqa: ARG005
    lockers: MutableMapping[int, Locker] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _desk: wire.Desk = field(init=False)
    _online: set[int] = field(init=False, default_factory=set)
    _clients: dict[int, int] = field(init=False, default_factory=dict)  # client -> node
    _greeted: dict[int, int] = field(init=False, default_factory=dict)  # node -> times asked
    _greetings: dict[str, int] = field(init=False, default_factory=dict)  # number -> node
    _late: dict[str, tuple[str, float]] = field(init=False, default_factory=dict)
    _called: float = field(init=False, default=float("-inf"))
    _mustered: bool = field(init=False, default=False)
    _round: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._desk = wire.Desk(self.run, self.method)

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Ask clients for what they say at the beginning of a round.

        Yields:
            The answers that came in time.
        """
        del method, plan  # clients know both
        yield from self._gather("prepare", orders)

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Let clients train.

        Yields:
            The results that came in time.
        """
        del method, plan
        yield from self._gather("train", orders)

    def remembered(self) -> Record:
        """What the judge has learned about usual results."""
        return self.judge.remembered()

    def recall(self, remembered: Record) -> None:
        """Judge as before the server was restarted."""
        self.judge.recall(remembered)

    def close(self) -> None:
        """There is nothing to end: nodes are not this engine's."""

    def _gather(self, exchange: Exchange, orders: Iterable[Order]) -> list[Result]:
        desk = self._desk
        errands = {o.client: Errand(exchange, o, *desk.write(o, exchange)) for o in orders}
        self._round = next((e.order.round for e in errands.values()), self._round)
        start = self.now()
        while True:
            self._call_roll()
            self._dispatch(errands)
            self._collect(errands)
            results = self._settle(errands, self.now() - start)
            if results is not None:
                break
            self.sleep(self.settings.poll)
        self._mustered = True
        for errand in errands.values():
            self._withdraw(errand)
        return results

    def _say(self, event: str, **about: object) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1
        self.note({"event": event, "round": self._round, **about})

    # Who is there

    def _call_roll(self) -> None:
        """Ask nodes that are new who they are; no longer count on those that are gone."""
        if self.now() - self._called < (ROLL_CALL if self._mustered else self.settings.poll):
            return
        self._called = self.now()
        online = self.mail.nodes()
        for client, node in list(self._clients.items()):
            if node not in online:
                del self._clients[client]
                self._say("left", client=client, node=node)
        for node in self._online - online:
            self._greeted.pop(node, None)
        self._online = online
        waiting = set(self._greetings.values()) | set(self._clients.values())
        asked = [n for n in sorted(online - waiting) if self._greeted.get(n, 0) < GREETINGS]
        hello = wire.write_hello(self.run)
        numbers = self.mail.send([(node, hello) for node in asked], self.settings.deadline)
        for node, number in zip(asked, numbers, strict=True):
            self._greeted[node] = self._greeted.get(node, 0) + 1
            if number is not None:
                self._greetings[number] = node

    def _welcome(self, node: int, answer: Letter | str) -> None:
        """A node says which client it is."""
        try:
            if isinstance(answer, str):
                raise WireError(answer)
            reply = wire.read_reply(answer)
            if reply.error or reply.client < 0:
                raise WireError(reply.error or "it does not say which client it is")
        except WireError as error:
            self._say("unknown", node=node, reason=str(error))
            return
        before = self._clients.get(reply.client)
        if before is not None and before != node:
            self._greeted[before] = GREETINGS  # it has been heard: do not ask again
            self._say("moved", client=reply.client, node=node, before=before)
        else:
            self._say("joined", client=reply.client, node=node)
        self._clients[reply.client] = node

    # Orders and answers

    def _dispatch(self, errands: Mapping[int, Errand]) -> None:
        """Send what is not under way, or under way to a node that no longer stands for the client."""
        due = []
        for client, errand in errands.items():
            node = self._clients.get(client)
            if errand.number is not None and errand.node != node:
                self._withdraw(errand)
            if node is not None and errand.number is None and self._open(errand):
                errand.node = node
                due.append(errand)
        letters = [(errand.node or 0, errand.letter) for errand in due]
        for errand, number in zip(due, self._send(letters), strict=True):
            errand.number = number
            if number is None:
                self._fail(errand, "the letter could not be sent")

    def _send(self, letters: list[tuple[int, Letter]]) -> list[str | None]:
        # A letter lives somewhat longer than the round, so that it is seen, and counted, that it came late.
        return self.mail.send(letters, 2 * self.settings.deadline) if letters else []

    def _collect(self, errands: Mapping[int, Errand]) -> None:
        under_way = {e.number: e for e in errands.values() if e.number is not None}
        for number, (_, until) in list(self._late.items()):
            if until < self.now():
                del self._late[number]
        for number, answer in self.mail.collect([*under_way, *self._greetings, *self._late]):
            if number in self._greetings:
                self._welcome(self._greetings.pop(number), answer)
            elif number in self._late:
                self._say("late", order=self._late.pop(number)[0])
            else:
                under_way[number].number = None
                self._take(under_way[number], answer)

    def _take(self, errand: Errand, answer: Letter | str) -> None:
        """An answer to an order came in."""
        if isinstance(answer, str):
            self._fail(errand, answer)
            return
        try:
            reply = wire.read_reply(answer)
            if reply.error:
                self._fail(errand, reply.error)
                return
            result = self._read(errand, reply, answer.body)
        except WireError as error:
            self._refuse(errand, str(error))
            return
        reason = self.judge.check(result, errand.order, errand.exchange)
        if reason is not None:
            self._refuse(errand, reason)
        else:
            errand.result = result

    def _read(self, errand: Errand, reply: wire.Reply, body: bytes) -> Result:
        said = (reply.name, reply.client, reply.method)
        for given, right in zip(said, (errand.name, errand.order.client, self.method), strict=True):
            if given != right:
                raise WireError(f"the reply is about {given!r}, not {right!r}")
        return wire.read_result(reply, body, self.settings.largest * 2**20)

    def _fail(self, errand: Errand, reason: str) -> None:
        errand.failures += 1
        kind = "failed" if errand.failures <= self.settings.retries else "skipped"
        self._say(kind, client=errand.order.client, reason=reason[:500])

    def _refuse(self, errand: Errand, reason: str) -> None:
        errand.refused = True
        self._say("refused", client=errand.order.client, reason=reason[:500])

    def _withdraw(self, errand: Errand) -> None:
        """No longer wait for an answer; if it comes, it is late."""
        if errand.number is not None:
            until = self.now() + 2 * self.settings.deadline
            self._late[errand.number] = errand.name, until
            errand.number = None

    # When a round is over

    def _open(self, errand: Errand) -> bool:
        """Whether there is still something to expect of it."""
        answered = errand.result is not None or errand.refused
        return not answered and errand.failures <= self.settings.retries

    def _settle(self, errands: Mapping[int, Errand], elapsed: float) -> list[Result] | None:
        """The results if the round is over, else ``None``."""
        results = [e.result for e in errands.values() if e.result is not None]
        waiting = {client for client, errand in errands.items() if self._open(errand)}
        enough = len(results) >= self.settings.needed(len(errands))
        if enough and self._over(waiting, elapsed):
            for client in sorted(waiting):
                self._say("missing", client=client, reason=f"no answer after {elapsed:.0f} s")
            results = self._without_outliers(results, errands)
            enough = len(results) >= self.settings.needed(len(errands))
            if enough:
                return results
        if elapsed > self.settings.patience or not (waiting or self._revive(errands)):
            self._give_up(len(results), len(errands), elapsed)
        return None

    def _revive(self, errands: Mapping[int, Errand]) -> bool:
        """Nobody is left to wait for: after a pause, ask those who failed once more, if there are any."""
        failed = [e for e in errands.values() if e.failures > self.settings.retries]
        if failed:
            self.sleep(PAUSE)
        for errand in failed:
            errand.failures = self.settings.retries
        return bool(failed)

    def _over(self, waiting: set[int], elapsed: float) -> bool:
        """Whether a round in which a quorum has answered waits no longer for these clients."""
        if not waiting or elapsed > self.settings.deadline:
            return True
        absent = not waiting & set(self._clients)
        return absent and (self._mustered or elapsed > self.settings.muster)

    def _without_outliers(
        self, results: list[Result], errands: Mapping[int, Errand]
    ) -> list[Result]:
        any_ = errands[results[0].client]
        reasons = self.judge.outliers(results, any_.order, any_.exchange)
        for client, reason in reasons.items():
            errands[client].result = None
            self._refuse(errands[client], reason)
        return [result for result in results if result.client not in reasons]

    def _give_up(self, answered: int, asked: int, elapsed: float) -> None:
        needed = self.settings.needed(asked)
        msg = (
            f"round {self._round}: only {answered} of {asked} clients gave an answer that counts in "
            f"{elapsed:.0f} s, but {needed} are needed; see events.jsonl, mend it and start again"
        )
        raise RunError(msg)
