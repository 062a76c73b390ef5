"""An engine whose clients are on other machines: orders travel as messages, and some get no answer.

A round ends when all clients have answered; when its timeout has passed and a quorum has answered; or when a
quorum has answered and no other client is online. Without a quorum, the round waits, asks again, and is
skipped at last. An order keeps its name however often it is sent, and a
client that has served it already sends the same answer again. So it is always safe to retry: after an error,
after the client's node has come back under another number, or after the server itself was restarted.
"""

import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from chronofed.clients.messages import Exchange, Order, Result
from chronofed.clients.state import ClientState
from chronofed.core.errors import RunError
from chronofed.core.types import Record, Task
from chronofed.flower.codec import OrderWriter, read_result
from chronofed.flower.messages import Message, MessageError, Reply, read_reply
from chronofed.flower.roster import Roster
from chronofed.flower.settings import Federation
from chronofed.flower.transport import Answer, Transport
from chronofed.methods.method import Method
from chronofed.scenarios.base import Plan

ROSTER_INTERVAL_S = 3.0
"""Seconds between two looks at the nodes online, from the second round on."""
RETRY_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""Seconds to wait before asking again when clients have failed: at first, and at most."""
MAX_REASON_CHARACTERS = 500
"""Characters of a client's error message that are recorded."""

HEADER_BYTES = 2**20
"""Bytes that names and places of tensors in an answer may take."""

ACCEPTED = "accepted"
"""Name of the rounds of accepted replies in a checkpoint."""

OnEvent = Callable[[Mapping[str, Any]], None]


class ResultFilter(Protocol):
    """Decides which results may be aggregated."""

    def check(self, result: Result, order: Order, exchange: Exchange) -> str | None:
        """Say why a single result is refused; ``None`` if it is not."""
        ...

    def clip(
        self, results: Sequence[Result], order: Order, exchange: Exchange
    ) -> tuple[list[Result], dict[int, str]]:
        """Return all results, scaled down where they are far larger than usual, and the reasons by client."""
        ...

    def reply_bytes(self, order: Order, exchange: Exchange) -> int | None:
        """Return the size of an answer's tensors; ``None`` if it depends on the client's data."""
        ...

    def state_dict(self) -> Record:
        """Return what the filter knows about usual results."""
        ...

    def load_state_dict(self, state_dict: Record) -> None:
        """Restore what :meth:`state_dict` returned."""
        ...


@dataclass(slots=True)
class PendingRequest:
    """The order of one client in one exchange, until it is answered.

    Attributes:
        exchange: The exchange of the round.
        order: The order.
        name: Name of the order.
        message: The order as a message.
        node: Node that it was sent to.
        message_id: Id of the message; ``None`` while no reply is expected.
        failures: Number of failed attempts.
        result: The answer.
        refused: The last answer was refused.
        refusals: Number of answers that were refused.
    """

    exchange: Exchange
    order: Order
    name: str
    message: Message
    node: int | None = None
    message_id: str | None = None
    failures: int = 0
    result: Result | None = None
    refused: bool = False
    refusals: int = 0


Requests = Mapping[int, PendingRequest]


@dataclass(slots=True)
class FlowerEngine:
    """Sends orders to clients on other machines and collects their results.

    Attributes:
        task: Model and test data, for evaluation; never sent.
        transport: Carries messages to nodes.
        run: Name of the run; clients have a separate client store for every run.
        fingerprint: Fingerprint of method and model.
        result_filter: Decides which results may be aggregated.
        settings: Timeouts, quorum and limits.
        on_event: Called with every event: clients that join, leave, fail, are late or are refused.
        on_answers: Called after every exchange with who was asked and who has answered.
        expected_nodes: Returns the clients of every node that may join, by node; by default all may join.
        client_states: Always empty: client states stay on the clients.
        counts: Number of events so far, by kind.
        now: Clock, in seconds.
        sleep: Waits for some seconds.
    """

    task: Task
    transport: Transport
    run: str
    fingerprint: str
    result_filter: ResultFilter
    settings: Federation = Federation()
    on_event: OnEvent = field(default=lambda event: None)
    on_answers: OnEvent = field(default=lambda answers: None)
    expected_nodes: Callable[[], Mapping[int, Collection[int]]] | None = None
    client_states: MutableMapping[int, ClientState] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _writer: OrderWriter = field(init=False)
    _roster: Roster = field(init=False)
    _refreshed: float = field(init=False, default=float("-inf"))
    _late: dict[str, tuple[str, float]] = field(init=False, default_factory=dict)
    """By message id: name of an order whose answer is no longer expected, and the time when it expires."""
    _accepted: dict[int, int] = field(init=False, default_factory=dict)
    """Round of the last accepted reply, by client."""
    _first_exchange: bool = field(init=False, default=True)
    _round: int = field(init=False, default=0)
    _skips: int = field(init=False, default=0)
    """Rounds without a quorum, in a row."""
    _pause: float = field(init=False, default=RETRY_PAUSE_S)

    def __post_init__(self) -> None:
        self._writer = OrderWriter(self.run, self.fingerprint)
        self._roster = Roster(self.transport, self.run, self._report, self.expected_nodes)

    def prepare(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Run the exchange that begins a round; clients know method and plan from their specification.

        Yields:
            The answers that came in time.
        """
        yield from self._gather("prepare", orders)

    def map(self, method: Method, orders: Iterable[Order], plan: Plan) -> Iterator[Result]:
        """Let clients train; they know method and plan from their specification.

        Yields:
            The results that came in time.
        """
        results = self._gather("train", orders)
        self._accepted |= {result.client: self._round for result in results}
        yield from results

    def state_dict(self) -> Record:
        """Return what was accepted from whom, and what the filter knows about usual results."""
        accepted = torch.tensor(sorted(self._accepted.items()), dtype=torch.int64).reshape(-1, 2)
        return {ACCEPTED: accepted, **self.result_filter.state_dict()}

    def load_state_dict(self, state_dict: Record) -> None:
        """Restore what :meth:`state_dict` returned before a restart."""
        known = dict(state_dict)
        accepted = known.pop(ACCEPTED, torch.zeros(0, 2, dtype=torch.int64))
        self._accepted = dict(accepted.tolist())
        self.result_filter.load_state_dict(known)

    def close(self) -> None:
        """Do nothing: the nodes do not belong to this engine."""

    def _gather(self, exchange: Exchange, orders: Iterable[Order]) -> list[Result]:
        requests = {
            order.client: PendingRequest(exchange, order, *self._write(order, exchange))
            for order in orders
        }
        self._round = next((r.order.round for r in requests.values()), self._round)
        start, self._pause = self.now(), RETRY_PAUSE_S
        while True:
            self._refresh_roster()
            self._dispatch(requests)
            self._collect(requests)
            results = self._finish(requests, self.now() - start)
            if results is not None:
                break
            self.transport.wait(self.settings.poll_s)
        self.transport.pause()
        self._first_exchange = False
        for request in requests.values():
            self._withdraw(request)
        self._summarise(requests, exchange, self.now() - start)
        return results

    def _summarise(self, requests: Requests, exchange: Exchange, elapsed: float) -> None:
        """Tell who was asked, and who has answered."""
        answered = [client for client, r in requests.items() if r.result is not None]
        self.on_answers(
            {
                "round": self._round,
                "exchange": exchange,
                "asked": sorted(requests),
                "answered": sorted(answered),
                "seconds": round(elapsed, 3),
            }
        )

    def _write(self, order: Order, exchange: Exchange, anew: bool = False) -> tuple[str, Message]:
        accepted = self._accepted.get(order.client, -1)
        return self._writer.write(order, exchange, accepted, anew)

    def _report(self, event: str, **details: object) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1
        self.on_event({"event": event, "round": self._round, **details})

    def _refresh_roster(self) -> None:
        interval = self.settings.poll_s if self._first_exchange else ROSTER_INTERVAL_S
        if self.now() - self._refreshed >= interval:
            self._refreshed = self.now()
            self._roster.refresh(self.settings.round_timeout_s)

    # Orders and answers

    def _dispatch(self, requests: Requests) -> None:
        """Send orders that are not under way, or under way to a node that is no longer the client's."""
        due = []
        for client, request in requests.items():
            node = self._roster.node_of(client)
            if request.message_id is not None and request.node != node:
                self._withdraw(request)
            if node is not None and request.message_id is None and self._is_open(request):
                request.node = node
                due.append((node, request))
        largest = max((self._largest(request) for _, request in due), default=0)
        message_ids = self._send([(node, request.message) for node, request in due], largest)
        for (_, request), message_id in zip(due, message_ids, strict=True):
            request.message_id = message_id
            if message_id is None:
                self._fail(request, "the message could not be sent")

    def _send(self, messages: list[tuple[int, Message]], largest: int) -> list[str | None]:
        # A message lives longer than the round, so that a late answer is seen and counted.
        ttl_s = 2 * self.settings.round_timeout_s
        return self.transport.send(messages, ttl_s, largest) if messages else []

    def _collect(self, requests: Requests) -> None:
        waiting = {r.message_id: r for r in requests.values() if r.message_id is not None}
        for message_id, (_, expires) in list(self._late.items()):
            if expires < self.now():
                del self._late[message_id]
        expected = [*waiting, *self._roster.message_ids, *self._late]
        for message_id, answer in self.transport.collect(expected, self._max_bytes(requests)):
            if self._roster.receive(message_id, answer):
                continue
            if message_id in self._late:
                self._report("late", order=self._late.pop(message_id)[0])
            else:
                waiting[message_id].message_id = None
                self._receive(waiting[message_id], answer)

    def _receive(self, request: PendingRequest, answer: Answer) -> None:
        """Check the answer to an order, and keep the result or note the failure."""
        if isinstance(answer, str):
            self._fail(request, answer)
            return
        try:
            if isinstance(answer, MessageError):
                raise answer
            reply = read_reply(answer)
            if reply.error:
                self._fail(request, reply.error)
                return
            result = self._read(request, reply, answer.body)
        except MessageError as error:
            self._refuse(request, str(error))
            return
        reason = self.result_filter.check(result, request.order, request.exchange)
        if reason is not None:
            self._refuse(request, reason)
        else:
            request.result = result
            self._report_restored(request.order.client, reply.held)

    def _report_restored(self, client: int, held: int) -> None:
        """Report a client whose state does not fit: one side was restored from a backup, or lost its state."""
        accepted = self._accepted.get(client, -1)
        if held != accepted:
            reason = f"it worked from its state of round {held}, the server has accepted round {accepted}"
            self._report("behind" if held < accepted else "ahead", client=client, reason=reason)

    def _read(self, request: PendingRequest, reply: Reply, body: bytes) -> Result:
        given = (reply.name, reply.client, reply.fingerprint)
        expected = (request.name, request.order.client, self.fingerprint)
        for one, other in zip(given, expected, strict=True):
            if one != other:
                raise MessageError(f"the reply is for {one!r}, expected {other!r}")
        return read_result(reply, body, self._largest(request))

    def _largest(self, request: PendingRequest) -> int:
        """Return the largest size in bytes of an answer that may be honest."""
        limit = self.settings.max_message_mb * 2**20
        known = self.result_filter.reply_bytes(request.order, request.exchange)
        return limit if known is None else min(limit, known + HEADER_BYTES)

    def _max_bytes(self, requests: Requests) -> int:
        # Orders of a round differ in size only if clients are sent parts of different sizes.
        return max(map(self._largest, requests.values()), default=HEADER_BYTES)

    def _fail(self, request: PendingRequest, reason: str) -> None:
        request.failures += 1
        event = "failed" if request.failures <= self.settings.retries else "skipped"
        self._report(event, client=request.order.client, reason=reason[:MAX_REASON_CHARACTERS])

    def _refuse(self, request: PendingRequest, reason: str) -> None:
        request.refused = True
        request.refusals += 1
        self._report("refused", client=request.order.client, reason=reason[:MAX_REASON_CHARACTERS])

    def _withdraw(self, request: PendingRequest) -> None:
        """Stop waiting for an answer; if it still comes, it is late."""
        if request.message_id is not None:
            expires = self.now() + 2 * self.settings.round_timeout_s
            self._late[request.message_id] = request.name, expires
            request.message_id = None

    # The end of a round

    def _is_open(self, request: PendingRequest) -> bool:
        answered = request.result is not None or request.refused
        return not answered and request.failures <= self.settings.retries

    def _finish(self, requests: Requests, elapsed: float) -> list[Result] | None:
        """Return the results if the round is over, else ``None``."""
        results = [r.result for r in requests.values() if r.result is not None]
        waiting = {client for client, request in requests.items() if self._is_open(request)}
        if len(results) >= self._needed(requests) and self._is_over(waiting, elapsed):
            for client in sorted(waiting):
                self._report("missing", client=client, reason=f"no answer after {elapsed:.0f} s")
            self._skips = 0
            return self._clipped(results, requests)
        if elapsed > self.settings.quorum_timeout_s or not (waiting or self._reopen(requests)):
            return self._skip_round(len(results), requests, elapsed)
        return None

    def _needed(self, requests: Requests) -> int:
        """Return the answers that this round needs.

        Without a quorum in the settings, clients whose answers were refused for good do not count: one client
        that sends nonsense must not stop the others.
        """
        hopeless = 0 if self.settings.quorum else sum(map(self._is_hopeless, requests.values()))
        return self.settings.needed(len(requests) - hopeless)

    def _is_hopeless(self, request: PendingRequest) -> bool:
        return request.refused and request.refusals > self.settings.retries

    def _reopen(self, requests: Requests) -> bool:
        """Ask clients that failed or were refused again, after a pause; return ``False`` if there are none."""
        failed = [r for r in requests.values() if r.failures > self.settings.retries]
        refused = [r for r in requests.values() if r.refused and not self._is_hopeless(r)]
        if failed or refused:
            self.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        for request in failed:
            request.failures = self.settings.retries
        for request in refused:
            request.refused = False
            _, request.message = self._write(request.order, request.exchange, anew=True)
        return bool(failed or refused)

    def _skip_round(self, answered: int, requests: Requests, elapsed: float) -> list[Result]:
        """Go on without this round, unless too many were skipped already.

        Raises:
            RunError: If too many rounds in a row had no quorum.
        """
        self._skips += 1
        needed = self._needed(requests)
        what = f"only {answered} of {len(requests)} clients gave a usable answer in {elapsed:.0f} s"
        if self._skips > self.settings.max_skips:
            raise RunError(
                f"round {self._round}: {what}, but {needed} are needed; "
                "see events.jsonl, fix the cause and start again"
            )
        self._report("no_quorum", reason=f"{what}, but {needed} are needed; the round is skipped")
        for request in requests.values():
            request.result = None
        return []

    def _is_over(self, waiting: set[int], elapsed: float) -> bool:
        """Tell if a round with a quorum should stop waiting for these clients."""
        if not waiting or elapsed > self.settings.round_timeout_s:
            return True
        joined = not self._first_exchange or elapsed > self.settings.join_timeout_s
        return joined and not self._roster.any_online(waiting)

    def _clipped(self, results: list[Result], requests: Requests) -> list[Result]:
        some = requests[results[0].client]
        clipped, reasons = self.result_filter.clip(results, some.order, some.exchange)
        for client, reason in reasons.items():
            self._report("clipped", client=client, reason=reason[:MAX_REASON_CHARACTERS])
        return clipped
