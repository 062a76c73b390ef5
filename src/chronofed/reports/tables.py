"""A table of text, rendered for the terminal and as Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable
from rich.text import Text

_ESCAPES = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        "−": "$-$",
    }
)


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of text under headings; the first column names the rows.

    Attributes:
        title: The title.
        headings: Names of the columns.
        rows: The cells.
        best: Cells in bold, as row and column numbers.
        words: The number of first columns that hold words; the others hold numbers.
        caption: A line below the table in the terminal.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()
    words: int = 1
    caption: str = ""

    def terminal(self) -> RichTable:
        """Render for the terminal."""
        table = RichTable(
            title=self.title,
            title_justify="left",
            header_style="bold",
            caption=self.caption or None,
            caption_justify="left",
        )
        for number, heading in enumerate(self.headings):
            table.add_column(
                heading, justify="left" if number < self.words else "right", overflow="fold"
            )
        for r, row in enumerate(self.rows):
            table.add_row(
                *(Text(text, "bold" if (r, c) in self.best else "") for c, text in enumerate(row))
            )
        return table

    def markdown(self) -> str:
        """Render as Markdown."""
        body = [
            self._styled(r, "**{}**", lambda text: text.replace("|", "\\|"))
            for r in range(len(self.rows))
        ]
        rule = ["---" if k < self.words else "---:" for k in range(len(self.headings))]
        lines = (" | ".join(cells) for cells in (self.headings, rule, *body))
        return "".join(f"| {line} |\n" for line in lines)

    def csv(self) -> str:
        """Render as CSV."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.headings, *self.rows])
        return out.getvalue()

    def latex(self) -> str:
        """Render as LaTeX; needs the package booktabs."""
        body = [
            self._styled(r, r"\textbf{{{}}}", lambda text: text.translate(_ESCAPES))
            for r in range(len(self.rows))
        ]
        head = [text.translate(_ESCAPES) for text in self.headings]
        lines = [" & ".join(cells) + r" \\" for cells in (head, *body)]
        inside = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
        columns = "l" * self.words + "r" * (len(self.headings) - self.words)
        return f"% {self.title}\n\\begin{{tabular}}{{{columns}}}\n{inside}\n\\end{{tabular}}\n"

    def _styled(self, row: int, bold: str, escape: Callable[[str], str]) -> list[str]:
        cells = [escape(text) for text in self.rows[row]]
        return [
            bold.format(text) if (row, c) in self.best else text for c, text in enumerate(cells)
        ]
