"""Block."""

from typing import ClassVar

from chronofed.core.config import Count
from chronofed.core.types import Record
from chronofed.methods.backbones.base import Uploads
from chronofed.methods.clusters.base import Assignment
from chronofed.methods.clusters.table import NOBODY, TABLE, Table


class Block(Assignment, tag="block"):
    r"""By the round alone: blocks of rounds take turns, and each has its own model.

    In round *t* everybody trains model :math:`\lfloor t / L \rfloor \bmod M`, as semi-cyclic SGD proposes for
    the membership ``blocks``. No exchange, and no names of clients; it goes with ``private``. A client follows
    the model that it trained last.

    Attributes:
        length: Rounds :math:`L` of a block, as in the membership ``blocks``.
    """

    reference: ClassVar[str] = "Eichner et al. (2019), Semi-Cyclic Stochastic Gradient Descent"

    length: Count = 1

    def place(self, server: Record, client: int | None) -> int:
        """Return the place of the round's block."""
        return self._turn(int(server[f"{TABLE}round"]), len(server[f"{TABLE}number"]))

    def learn(self, table: Table, uploads: Uploads) -> None:
        """Note who trained the model of the block, as far as names are known."""
        place = self._turn(table.round, len(table.number))
        if table.number[place] == NOBODY:
            table.number[place], table.upcoming = table.upcoming, table.upcoming + 1
        table.last[place] = table.round
        table.steps[place] += len(uploads)
        for upload in uploads:
            if upload.sender is not None:
                table.follow(upload.sender, place)

    def _turn(self, round_: int, models: int) -> int:
        return round_ // self.length % models
