"""A declaration that a method works on many clients at once."""

from collections.abc import Callable
from typing import Any, TypeVar

_Step = TypeVar("_Step", bound=Callable[..., Any])
_MARK = "_works_stacked"


def stacked(step: _Step) -> _Step:
    """Declare that a method works on ``(clients, d)`` as on ``(d,)``, so that clients can train together.

    This holds if the method treats every parameter separately: sums and products, but no norm of a whole
    vector. An override is not stacked unless it is decorated again. A stacked ``gradient`` asks for one
    mini-batch per step. A stacked ``expand`` of a curvature draws nothing. A stacked ``observe`` comes with
    :meth:`~chronofed.methods.memories.base.Memory.observe_together`, its form for many clients.
    """
    setattr(step, _MARK, True)
    return step


def works_stacked(step: Callable[..., Any]) -> bool:
    """Tell if a method was declared to be :func:`stacked`."""
    return getattr(step, _MARK, False)
