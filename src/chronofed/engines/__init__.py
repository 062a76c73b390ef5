"""Where the clients of a round run."""

from chronofed.engines.batched import BatchedEngine
from chronofed.engines.lockers import LockerStore
from chronofed.engines.processes import ProcessEngine
from chronofed.engines.serial import SerialEngine
from chronofed.engines.threads import ThreadEngine

__all__ = ["BatchedEngine", "LockerStore", "ProcessEngine", "SerialEngine", "ThreadEngine"]
