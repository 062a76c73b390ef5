"""Writing checkpoints in the background."""

from concurrent.futures import Future, ThreadPoolExecutor

from chronofed.runs.checkpoint import RunPoint, save
from chronofed.runs.directory import RunDirectory
from chronofed.training.loop import Snapshot


class CheckpointWriter:
    """Writes checkpoints in a thread while training continues, one at a time.

    A snapshot never changes, so it can be written at any time. Only the time that training waits counts as
    writing.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def save(self, snapshot: Snapshot, keep: int, point: RunPoint, forgotten: int = -1) -> None:
        """Wait for the previous checkpoint, then start writing this one; arguments as in ``checkpoint.save``.

        Raises:
            StorageError: If the previous one could not be written.
        """
        self.wait()
        self._pending = self._pool.submit(self._save, snapshot, keep, point, forgotten)

    def wait(self) -> None:
        """Block until everything is written.

        Raises:
            StorageError: If it could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _save(self, snapshot: Snapshot, keep: int, point: RunPoint, forgotten: int) -> None:
        self._directory.flush()
        save(self._directory.checkpoints, snapshot, keep, point, forgotten)

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown()
        if kind is None:
            self.wait()
