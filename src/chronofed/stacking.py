"""Which methods work on many clients at once."""

from collections.abc import Callable
from typing import Any, TypeVar

_Step = TypeVar("_Step", bound=Callable[..., Any])
_STACKED: set[Callable[..., Any]] = set()


def stacked(step: _Step) -> _Step:
    """Declare that a method works on ``(clients, d)`` as on ``(d,)``, so that clients may train as one.

    It does if it treats every parameter by itself: sums, products, no norm of a whole vector. An override
    that does not say so again is not taken for it. A stacked ``gradient`` asks for one mini-batch a step. A
    stacked ``diagonal`` draws nothing. A stacked ``observe`` has a form for many clients beside it
    (:meth:`~chronofed.memories.base.Memory.observe_together`).
    """
    _STACKED.add(step)
    return step


def works_stacked(step: Callable[..., Any]) -> bool:
    """Whether a method was declared to be :func:`stacked`."""
    return getattr(step, "__func__", step) in _STACKED
