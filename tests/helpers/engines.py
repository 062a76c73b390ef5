"""Engines for tests."""

import random
from concurrent.futures import ThreadPoolExecutor

from chronofed import Client, SerialEngine
from chronofed.engines.base import one_thread


class ShuffledWorkers(SerialEngine):
    """Four threads, each with a model of its own; results arrive in a random order."""

    def prepare(self, method, orders, plan):
        answers = list(super().prepare(method, orders, plan))
        random.Random(plan.round).shuffle(answers)
        yield from answers

    def map(self, method, orders, plan):
        def one(order):
            visit = plan.visits[order.client]
            data = self.task.samples(visit.indices)
            client_state = self.client_states.get(order.client)
            with one_thread():
                client = Client(method, order, client_state, self.task.objective(), data, visit.key)
                return client.serve()

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(one, orders))
        random.Random(plan.round).shuffle(answers)
        for result, client_state in answers:
            self.store_state(method, result.client, client_state)
            yield result
