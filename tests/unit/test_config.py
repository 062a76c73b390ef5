"""Settings check themselves, from Python as from TOML."""

import pytest

from chronofed import CoreSet, FedProx, Method, Train
from chronofed.core.config import Config, Count, Kind, NonNegative, is_alternative, kind_of


class Inner(Config):
    size: Count = 1


class Outer(Config):
    inner: Inner = Inner()
    maybe: Inner | None = None
    rate: NonNegative = 0.0
    names: tuple[str, ...] = ()


def test_types_and_ranges_are_checked():
    with pytest.raises(ValueError, match=r"Outer.rate: Expected `float`.*, not 'fast'"):
        Outer(rate="fast")
    with pytest.raises(ValueError, match=r"Outer.rate: Expected `float` >= 0.0, not -1"):
        Outer(rate=-1)
    with pytest.raises(ValueError, match=r"Inner.size: Expected `int` >= 1, not 0"):
        Outer(inner=Inner(0))


def test_settings_are_values():
    assert FedProx(0.1) == FedProx(0.1) != FedProx(0.2)
    assert hash(Method(FedProx(0.1), CoreSet(3))) == hash(Method(FedProx(0.1), CoreSet(3)))
    with pytest.raises(AttributeError, match="immutable"):
        Train().lr = 1.0


def test_alternatives_have_names_and_bases_have_none():
    class Base(Kind):
        pass

    class One(Base, tag="one"):
        pass

    assert kind_of(One) == kind_of(One()) == "one"
    assert is_alternative(One)
    assert not is_alternative(Base)
