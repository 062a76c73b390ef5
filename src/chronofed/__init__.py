"""chronofed: federated learning on data that keeps changing.

A *method* (backbone x memory x round weights) meets a *scenario* (who takes part in round t, with which data)
on an *engine*, and leaves a *run* on disk.

The public names are those of ``__init__.pyi``, beside :mod:`chronofed.theory` and :mod:`chronofed.theory.nqm`;
every other module is internal. A name is imported when it is first used, so that ``import chronofed`` and
``chronofed --help`` do not wait for torch.
"""

import re
from importlib import import_module
from pathlib import Path

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME = {
    public: (module, name)
    for module, name, public in re.findall(
        r"^from (\S+) import (\w+) as (\w+)$", _STUB, re.MULTILINE
    )
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("chronofed")
    if name not in _HOME:
        raise AttributeError(f"module 'chronofed' has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
