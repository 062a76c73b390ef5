"""Every backbone x memory, found by what is registered: a new file is under the laws at once."""

import itertools

import pytest

from chronofed import Backbone, Memory, Method, Optimal
from chronofed.experiments.reader import alternatives

SHIPPED = "chronofed."  # the project's own; tests define others
BACKBONES = [cls() for cls in alternatives(Backbone).values() if cls.__module__.startswith(SHIPPED)]
MEMORIES = [cls() for cls in alternatives(Memory).values() if cls.__module__.startswith(SHIPPED)]


def method(backbone: Backbone, memory: Memory) -> Method:
    return Method(backbone, memory, Optimal(drift=1.0, loss=0.5))


def name(part) -> str:
    return type(part).__name__


EVERY = [
    pytest.param(method(b, m), id=f"{name(b)}-{name(m)}")
    for b, m in itertools.product(BACKBONES, MEMORIES)
]
