"""The verdict in the terminal: the last thing that is printed."""

from collections.abc import Sequence

from rich.text import Text

from chronofed.reports.groups import Group
from chronofed.reports.terminal.plain import as_ascii
from chronofed.reports.verdict import verdict


def sentences(groups: Sequence[Group], plain: bool = False) -> Text:
    """Write the verdict, the headline in bold."""
    headline, *rest = verdict(groups).lines
    text = as_ascii if plain else str
    return Text.assemble((text(f"{headline}."), "bold"), *(f"\n{text(line)}" for line in rest))
