"""Where the clients of a round run."""

from chronofed.engines.serial import SerialEngine

__all__ = ["SerialEngine"]
