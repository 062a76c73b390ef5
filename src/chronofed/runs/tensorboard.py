"""TensorBoard as a tracker: writes events to the folder ``tensorboard`` of the run directory."""

import json
from collections.abc import Mapping
from typing import Any

from chronofed.core.errors import MissingExtraError
from chronofed.runs.tracking import TrackedRun
from chronofed.training.summary import Measures


class TensorBoard:
    """Writes every measure as a scalar over rounds; needs the extra ``track``.

    Raises:
        MissingExtraError: If TensorBoard is not installed.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboard", "track", "track = 'tensorboard'") from None
        self._make = SummaryWriter

    def start(self, run: TrackedRun) -> None:
        """Open an event file and purge the events after the round that the run resumes from."""
        folder = str(run.path / "tensorboard")
        self._writer: Any = self._make(folder, purge_step=run.round + 1 if run.round else None)
        self._writer.add_text("spec", f"```json\n{json.dumps(run.spec, indent=2)}\n```", run.round)

    def log(self, round_: int, measures: Measures) -> None:
        """Write one scalar per measure."""
        for key, value in measures.items():
            if key != "round":
                self._writer.add_scalar(key, value, round_)
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Close the file."""
        self._writer.close()
