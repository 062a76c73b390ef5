"""Print a pip constraint for the oldest supported version of every requirement of chronofed and its tests.

A version on the command line replaces a lower bound that cannot be installed on this machine:

    python scripts/oldest.py torch==2.13.0 > oldest.txt
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
# Extras that the tests need; linters, type checkers and documentation tools are not under test.
EXTRAS = ("plot", "parquet", "sweep", "track", "test")


def lower_bounds() -> dict[str, str]:
    """Return the oldest version of every requirement."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = "\n".join(
        [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    )
    return dict(re.findall(r"([\w-]+)>=([\d.]+)", wanted))


def main(replacements: list[str]) -> None:
    """Print one constraint a line."""
    bounds = lower_bounds()
    for each in replacements:
        name, _, version = each.partition("==")
        bounds[name] = version
    for name, version in bounds.items():
        print(f"{name}=={version}")


if __name__ == "__main__":
    main(sys.argv[1:])
