"""The page of claims: p-values corrected for their number, power, and the forest plot."""

import re

import pytest

from chronofed.reports.claims import claims_page, findings_table, power_text, write_claims
from chronofed.reports.figures.forest import draw_forest, lines
from chronofed.studies.claims import Beats
from chronofed.studies.verdicts import Comparison, corrected, judge, multiplicity
from chronofed.training.paired import Paired
from chronofed.training.power import interval, pairs_needed, reach
from tests.unit.test_results import COLUMNS, HEAD, TABLE, claim, ends
from tests.unit.test_results import results as results

CLAIM = Beats(says="so", better=("A",), worse=("B",), headline=True)


def difference(mean, deviation, pairs=3, **settings):
    return Comparison("a - b", Paired(mean, deviation, pairs), **settings)


def finding(*comparisons):
    return judge(CLAIM, comparisons)


CLEAR, OPEN, AGAINST = (
    finding(difference(9.0, 0.5)),
    finding(difference(2.0, 2.5)),
    finding(difference(-9.0, 0.5)),
)
NOT_RUN = finding(Comparison("a - b", None))


def test_the_p_value_of_a_claim_is_that_of_its_weakest_difference():
    weak = difference(9.0, 2.0)
    assert finding(difference(9.0, 0.5), weak).p == weak.p_for
    assert AGAINST.p == 1.0
    assert NOT_RUN.p is None


def test_p_values_are_corrected_for_the_number_of_claims():
    found = corrected([OPEN, NOT_RUN, CLEAR, AGAINST])
    assert found[1] is None
    assert found[2] == pytest.approx(3 * CLEAR.p)
    assert found[0] == pytest.approx(2 * OPEN.p)
    assert found[3] == 1.0


def test_how_many_claims_survive_is_said():
    just = finding(difference(9.0, 3.4))
    assert just.verdict == "holds"
    text = multiplicity([CLEAR, just, OPEN, NOT_RUN])
    assert "3 claims were tested" in text
    assert text.endswith("1 of the 2 that hold still do.")


def test_power_is_of_the_weakest_difference():
    both = finding(difference(1.0, 1.0), difference(1.0, 2.0))
    assert both.resolvable == pytest.approx(2 * reach(3))
    assert finding(difference(1.0, 1.0), Comparison("a - b", None)).resolvable is None
    assert finding(difference(1.0, None, 1)).resolvable is None


def test_an_open_claim_says_the_seeds_it_would_take():
    assert OPEN.seeds_needed == pairs_needed(2.0, 2.5)
    assert CLEAR.seeds_needed is None
    margin = finding(difference(5.0, 2.5, margin=3.0))
    assert margin.seeds_needed == OPEN.seeds_needed
    both = finding(difference(2.0, 2.5), difference(2.0, 3.5))
    assert both.seeds_needed == pairs_needed(2.0, 3.5)
    # One on the other side: the claim would be decided by that one, among two.
    mixed = finding(difference(2.0, 2.5), difference(-2.0, 2.5))
    assert mixed.seeds_needed == pairs_needed(2.0, 2.5, p=0.025)
    assert power_text(mixed).endswith(f"takes about {mixed.seeds_needed} seeds")
    assert power_text(finding(difference(0.001, 2.5))).endswith("takes over 1000 seeds")
    assert power_text(CLEAR) == f"{0.5 * reach(3):.1f}"


def test_two_numbers_that_may_be_alike():
    one = finding(difference(0.01, 0.02, tolerance=0.5))
    assert one.verdict == "holds"
    assert 0.02 < one.resolvable < 0.1
    assert finding(difference(0.3, 0.9, tolerance=0.5)).seeds_needed is None


def test_the_papers_difference_stands_beside_ours(results):
    paper = "[paper]\nA = [50.0, 50.0]\nB = [61.0, 72.0]\n"
    text = HEAD + COLUMNS + TABLE + paper
    text += claim("beats", better=["B"], worse=["A"])
    text += claim("grows", better="B", worse="A", larger_in="hard", smaller_in="easy")
    text += claim("beats", better=["B"], worse=["A"], measure="last")
    text += claim("beats", better=["C"], worse=["A"])
    beats, grows, other, unknown = results(text, ends).findings()
    assert [one.published for one in beats.comparisons] == [11.0, 22.0]
    assert [one.published for one in grows.comparisons] == [11.0]
    assert {one.published for one in (*other.comparisons, *unknown.comparisons)} == {None}


def test_lines_of_the_forest_plot():
    several = finding(difference(9.0, 0.5, published=4.0), difference(8.0, None, 1))
    shown = lines([several, NOT_RUN, finding(difference(0.0, 0.1, tolerance=1.0))])
    assert [line.mean for line in shown] == [9.0, 8.0]
    assert (shown[0].low, shown[0].high) == interval(Paired(9.0, 0.5, 3))
    assert (shown[0].published, shown[1].published) == (4.0, None)
    assert {line.verdict for line in shown} == {"not resolved"}


def test_the_page_begins_with_the_headline_claims(tmp_path):
    write_claims([CLEAR, OPEN, NOT_RUN], tmp_path)
    page = (tmp_path / "claims.md").read_text()
    assert page.index("![Differences") < page.index("| claim | verdict |")
    drawn = (tmp_path / "claims.svg").read_text()
    assert len(re.findall("<!-- a - b -->", drawn)) == 2
    assert "claim holds" in drawn
    assert "claim not resolved" in drawn
    assert "the paper" not in drawn
    before = (tmp_path / "claims.png").read_bytes()
    write_claims([CLEAR, OPEN, NOT_RUN], tmp_path)
    assert (tmp_path / "claims.png").read_bytes() == before


def test_without_headline_claims_there_is_no_plot(tmp_path):
    plain = Beats(says="so", better=("A",), worse=("B",))
    write_claims([judge(plain, [difference(9.0, 0.5)])], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["claims.md"]


def test_the_plot_marks_margin_and_paper(tmp_path):
    shown = lines([finding(difference(9.0, 0.5, margin=3.0, published=10.97))])
    plain = lines([finding(difference(9.0, 0.5))])
    sizes = [
        len(draw_forest(one, "points", tmp_path / f"{k}.svg").read_text())
        for k, one in enumerate((plain, shown))
    ]
    assert sizes[0] < sizes[1]
    assert "the paper" in (tmp_path / "1.svg").read_text()


def test_the_table_has_both_columns_and_says_what_they_mean():
    shown = findings_table([CLEAR, OPEN, NOT_RUN])
    assert shown.headings[-2:] == ["p, Holm", "could resolve"]
    assert shown.rows[2][-2:] == ["-", "-"]
    assert shown.rows[0][-2] == "0.002"
    assert "*Could resolve*: the difference" in claims_page([CLEAR])
    assert "*Could resolve*" not in claims_page([NOT_RUN])
