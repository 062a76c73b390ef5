"""The software and the machine of a run."""

import os
import platform
import sys
from importlib.metadata import version
from typing import Any

PACKAGES = ("chronofed", "torch", "numpy", "msgspec", "rich")


def environment() -> dict[str, Any]:
    """Return versions and machine, as far as they may explain a result; nothing about the user."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in PACKAGES},
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
    }
