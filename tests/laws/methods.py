"""Every backbone x memory, found by what is registered: a new file is under the laws at once."""

import itertools

import pytest

from chronofed import Backbone, Memory, Method, Optimal, Private
from chronofed.experiments.reader import alternatives

SHIPPED = "chronofed."  # the project's own; tests define others
BACKBONES = [
    cls()
    for cls in alternatives(Backbone).values()
    if cls.__module__.startswith(SHIPPED) and not cls.private
]
PRIVATE = Private(noise=0.02)  # which does not go with everything; little noise, so that it learns
MEMORIES = [cls() for cls in alternatives(Memory).values() if cls.__module__.startswith(SHIPPED)]


def method(backbone: Backbone, memory: Memory) -> Method:
    average = "clients" if backbone.private else "samples"
    return Method(backbone, memory, Optimal(drift=1.0, loss=0.5), average)


def name(part) -> str:
    return type(part).__name__


EVERY = [
    pytest.param(method(b, m), id=f"{name(b)}-{name(m)}")
    for b, m in itertools.product([*BACKBONES, PRIVATE], MEMORIES)
    if not (b.private and m.home == "server")
]
