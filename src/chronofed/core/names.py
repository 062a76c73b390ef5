"""Names of clients and data sets for people: those of the data where they have some, else numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Characters of a name in a figure or a table.
MOST = 24


@dataclass(frozen=True, slots=True)
class Names:
    """The one place where numbers of clients and data sets become names.

    Attributes:
        clients: Names of the clients by number; empty if they have none.
        periods: Names of the periods by the keys of data sets; empty if they have none.
        returning: Whether clients come back.
    """

    clients: Sequence[str] = ()
    periods: Sequence[str] = ()
    returning: bool = True

    @classmethod
    def recorded(cls, about: Mapping[str, Any]) -> "Names":
        """Read the names in a run's ``scenario.json``; none if it is empty."""
        clients, periods = (about.get(f"{each}_names", ()) for each in ("client", "period"))
        return cls(clients, periods, about.get("returning", True))

    def client(self, number: int) -> str:
        """Return the name of a client.

        >>> Names(("Sydney", "Perth")).client(1), Names().client(1), Names(returning=False).client(0)
        ('Perth', 'client 1', 'new client 0')
        """
        if number < len(self.clients):
            return shortened(self.clients[number])
        return f"client {number}" if self.returning else f"new client {number}"

    def data_set(self, key: int) -> str:
        """Return the name of a data set: its period, if periods have names.

        >>> Names(periods=("2009-03", "2009-04")).data_set(1), Names().data_set(1)
        ('2009-04', 'data set 1')
        """
        return shortened(self.periods[key]) if key < len(self.periods) else f"data set {key}"


def shortened(name: str, most: int = MOST) -> str:
    r"""Shorten a name, and show what cannot be printed as ``?``.

    >>> shortened("a station with a very long name"), shortened("two\nlines")
    ('a station with a very l…', 'two?lines')
    """
    printable = "".join(c if c.isprintable() else "?" for c in name)
    return printable if len(printable) <= most else f"{printable[: most - 1]}…"
