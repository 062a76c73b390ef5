"""Ray without Ray: actors in this process, which answer when they are asked, and die when they are told."""

from itertools import count
from types import SimpleNamespace


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class FakeRay:
    """As much of the module as the engine uses.

    Attributes:
        deaths: Numbers of calls of ``serve``, counted over all actors, whose actor dies instead of answering.
        unborn: Numbers of actors that never start.
        calls: The calls of ``serve``.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, deaths=(), unborn=()):
        self.deaths, self.unborn = set(deaths), set(unborn)
        self.calls: list[str] = []
        self._born = count()

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": 2.0}

    def put(self, content):
        return content

    def remote(self, **options):
        assert options["num_cpus"] == 1
        return lambda cls: SimpleNamespace(remote=lambda *a: _Actor(self, cls, a))

    def kill(self, actor):
        actor.alive = False

    def wait(self, references, num_returns=1, timeout=None):
        return list(references)[:num_returns], list(references)[num_returns:]

    def get(self, reference):
        return reference()


class _Actor:
    def __init__(self, ray, cls, arguments):
        self.alive = next(ray._born) not in ray.unborn
        self._ray, self._inner = ray, cls(*arguments)

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name, arguments):
        done: list[object] = []

        def answer():
            if not done:
                done.append(self._answer(name, arguments))
            if isinstance(done[0], RayError):
                raise done[0]
            return done[0]

        if name == "forget":
            return self._answer(name, arguments)
        return answer

    def _answer(self, name, arguments):
        if name in ("node", "run") and not self.alive:
            return RayError("never started")
        if name == "node":
            return "here"
        if name == "serve":
            self._ray.calls.append(name)
            self.alive &= len(self._ray.calls) - 1 not in self._ray.deaths
        return getattr(self._inner, name)(*arguments) if self.alive else RayError("it died")
