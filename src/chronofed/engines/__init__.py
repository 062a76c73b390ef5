"""Engines: how and where the clients of a round are trained."""

from chronofed.engines.batched.engine import BatchedEngine
from chronofed.engines.processes import ProcessEngine
from chronofed.engines.ray.engine import RayEngine
from chronofed.engines.serial import SerialEngine
from chronofed.engines.threads import ThreadEngine

__all__ = ["BatchedEngine", "ProcessEngine", "RayEngine", "SerialEngine", "ThreadEngine"]
