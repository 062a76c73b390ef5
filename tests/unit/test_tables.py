"""A table in four forms; nothing in a cell can break out of it."""

import csv
import io

from rich.console import Console

from chronofed.reports.tables import TextTable

TABLE = TextTable(
    "Title",
    ["method", "a_b", "100 %"],
    [["A|B", "1.0 ± 0.1", "2"], ["x & {y}", "3, 4", "#5 \\ ~"]],
    frozenset({(1, 1)}),
)


def test_markdown():
    assert TABLE.markdown() == (
        "| method | a_b | 100 % |\n| --- | ---: | ---: |\n"
        "| A\\|B | 1.0 ± 0.1 | 2 |\n| x & {y} | **3, 4** | #5 \\ ~ |\n"
    )


def test_csv_can_be_read_again():
    assert list(csv.reader(io.StringIO(TABLE.csv()))) == [TABLE.headings, *TABLE.rows]


def test_latex():
    text = TABLE.latex()
    assert text.startswith("% Title\n\\begin{tabular}{lrr}\n\\toprule\n")
    assert r"method & a\_b & 100 \% \\" in text
    assert r"1.0 $\pm$ 0.1" in text
    assert r"x \& \{y\} & \textbf{3, 4} & \#5 \textbackslash{} \textasciitilde{} \\" in text
    assert text.count("{") == text.count("}")


def test_terminal():
    console = Console(width=80, file=io.StringIO())
    console.print(TABLE.terminal())
    printed = console.file.getvalue()
    for cell in ("A|B", "3, 4", "#5 \\ ~", "Title"):
        assert cell in printed
