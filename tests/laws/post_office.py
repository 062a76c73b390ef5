"""A post office in memory, between a server and stations: no Flower, no processes."""

import itertools
from dataclasses import dataclass, field

from chronofed.flower import wire
from chronofed.flower.station import Station


@dataclass
class Time:
    """A clock that only sleeping moves."""

    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class PostOffice:
    """Nodes with stations behind them; ``tamper`` may change, delay or lose any answer."""

    time: Time
    stations: dict[int, Station]
    tamper: object = None
    numbers: itertools.count = field(default_factory=itertools.count)
    waiting: dict[str, tuple[float, object]] = field(default_factory=dict)
    sent: list[tuple[int, str]] = field(default_factory=list)

    def nodes(self):
        return set(self.stations)

    def send(self, letters, seconds):
        numbers = []
        for node, letter in letters:
            number = str(next(self.numbers))
            numbers.append(number)
            question = wire.read_question(letter)
            self.sent.append((node, question.name))
            answer, delay = self.answer(node, letter), 0.0
            if self.tamper is not None and question.ask != "hello":
                answer, delay = self.tamper(
                    question, answer, lambda n=node, x=letter: self.answer(n, x)
                )
            if answer is not None:
                self.waiting[number] = (self.time.now + delay, answer)
        return numbers

    def answer(self, node, letter):
        try:
            return self.stations[node].answer(letter)
        except ZeroDivisionError as error:
            return f"error 2: {error}"

    def collect(self, numbers):
        due = [n for n in numbers if n in self.waiting and self.waiting[n][0] <= self.time.now]
        return [(n, self.waiting.pop(n)[1]) for n in due]
