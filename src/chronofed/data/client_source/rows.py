"""Test rows for the server, read the same way as clients read their own rows."""

from pathlib import Path

import msgspec
import numpy as np
import torch

from chronofed.core.errors import DataError
from chronofed.data.client_source import Everything, Source
from chronofed.data.dataset import Dataset, DataSettings
from chronofed.data.holdout import random_rows
from chronofed.data.preparation import Preparation


class SourceRows(DataSettings, tag="source-rows"):
    """Test rows, read the same way as clients read their own rows; for the scenario ``remote``.

    All training rows are the clients' own, so the share for ``validation`` is one of these rows.

    Attributes:
        source: The file, its columns and its classes. All rows are used, current or not.
    """

    source: Source

    def load(self, folder: Path | None, seed: int) -> Dataset:
        """Read the rows. One of them serves as training data, to show the shape of the clients' samples."""
        data = msgspec.structs.replace(self.source, current=Everything()).read(0)
        if not len(data):
            reason = "; ".join(data.notes) or "the file has none"
            raise DataError(f"{self.source.path}: no test rows: {reason}")
        one, name = data.samples[torch.zeros(1, dtype=torch.int64)], Path(self.source.path).stem
        everything = np.ones(len(data), dtype=np.bool_)
        labels = data.samples.y.numpy() if self.source.classes else everything.astype(np.int64)
        held = random_rows(labels, self.validation, everything, seed, "validation")
        test, validation = (data.samples[torch.from_numpy(mask)] for mask in (~held, held))
        return Dataset(
            name,
            one,
            test,
            self.source.classes,
            notes=data.notes,
            validation=validation,
            preparation=_preparation(self.source),
        )


def _preparation(source: Source) -> Preparation | None:
    """Return the scale of a target that is a number, so that errors are in its own units."""
    if source.scaling is None:
        return None
    return Preparation(source.features, (), target=source.scaling)
