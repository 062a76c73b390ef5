"""The name of a class is its ``kind`` in TOML, without hyphens."""

import importlib
import pkgutil

import chronofed
from chronofed.core.config import Kind, is_alternative, kind_of


def every_subclass(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from every_subclass(sub)


def alternatives():
    """Every class of the package that a specification, recipe or source file can name."""
    for module in pkgutil.walk_packages(chronofed.__path__, "chronofed."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = {cls for cls in every_subclass(Kind) if cls.__module__.startswith("chronofed.")}
    return [cls for cls in found if is_alternative(cls)]


def test_a_kind_is_the_name_of_its_class():
    found = alternatives()
    assert len(found) >= 60
    wrong = {kind_of(cls): cls.__name__ for cls in found if not same(kind_of(cls), cls.__name__)}
    assert wrong == {}


def same(kind, name):
    return kind.replace("-", "") == name.lower()
