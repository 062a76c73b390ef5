"""The commands of the theory laboratory: ``weights`` and ``rates``."""

import json
import re

import pytest

from chronofed import theory
from chronofed.cli import rates
from chronofed.cli.main import build_parser, main
from chronofed.cli.rates import SYMBOLS
from chronofed.cli.weights import bars
from chronofed.methods.weighting import Correlated, Optimal, Timeline
from chronofed.reports.figures import theory as figures
from chronofed.theory.symbols import Problem

PAPER = [  # ``Optimal weights of CFL with correlated time drifts``: alpha, D2, R2, weights
    ("0", "2", "1", [0.1818, 0.1818, 0.1818, 0.4545]),
    ("0.5", "1", "0.5", [0.2857, 0.1429, 0.0000, 0.5714]),
    ("0.5", "1", "1", [0.2632, 0.1316, -0.0789, 0.6842]),
    ("0.8", "1", "0.5", [0.3870, 0.0774, -0.2077, 0.7434]),
    ("0.8", "2", "0.5", [0.3960, 0.0792, -0.1188, 0.6436]),
]


@pytest.fixture
def call(cli):
    return cli


# --- weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "drift", "loss", "expected"), PAPER)
def test_the_table_of_the_paper(call, alpha, drift, loss, expected):
    given = (
        "--rounds",
        "4",
        "--time-drift-sq",
        drift,
        "--information-loss-sq",
        loss,
        "--correlation",
        alpha,
        "--signed",
    )
    code, out, err = call("weights", *given)
    assert (code, err) == (0, "")
    shown = re.findall(r"│ +\d+(?: \(present\))? │ +(-?\d\.\d{4}) │", out)
    assert [float(w) for w in shown] == expected
    content = json.loads(call("weights", *given, "--json")[1])
    assert list(content) == ["weights", "objective"]
    assert [round(w, 4) + 0.0 for w in content["weights"]] == expected
    assert f"objective p'Qp = {content['objective']:.6g}" in out


def test_weights_are_not_negative_unless_asked_for(call):
    given = ("weights", "--correlation", "0.8")
    code, out, err = call(*given)
    assert code == 0
    assert "-0." not in out
    assert (
        err
        == "chronofed: without the bound at 0 some weights are negative, as in the paper: use --signed\n"
    )
    signed, bounded = (json.loads(call(*given, *o, "--json")[1]) for o in (["--signed"], []))
    assert min(signed["weights"]) < 0 <= min(bounded["weights"])
    assert signed["objective"] < bounded["objective"]
    assert call("weights")[2] == ""


def test_client_drift_and_cohort(call):
    timeline = Timeline((0, 1, 2), (5, 5, 5), now=3, size=10)
    given = ("weights", "--client-drift-sq", "3", "--cohort", "2", "--json")
    independent = Optimal(
        time_drift_sq=1.0, information_loss_sq=0.5, client_drift_sq=3.0, cohort=2
    )(timeline)
    assert json.loads(call(*given)[1])["weights"] == pytest.approx(independent.tolist())
    settings = {
        "time_drift_sq": 1.0,
        "information_loss_sq": 0.5,
        "client_drift_sq": 3.0,
        "cohort": 2,
    }
    correlated = Correlated(**settings, correlation=0.8)(timeline)
    found = json.loads(call(*given, "--correlation", "0.8")[1])
    assert found["weights"] == pytest.approx(correlated.tolist())
    assert "G² = 3, N = 2" in call(*given[:-1])[1]


def test_bars_meet_at_one_line():
    drawn = bars([0.5, -0.25, 0.0], width=12)
    assert drawn == ["    │████████", "░░░░│", "    │"]
    assert bars([1.0, 0.5], width=8) == ["████████", "████"]
    assert bars([1.0, 0.52], width=10)[1] == "█████▎"
    assert bars([0.0], width=8) == [""]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "--rounds: expected a number from 1 to 5000, not 0"),
        (["--rounds", "1000000000"], "--rounds: expected a number from 1 to 5000"),
        (["--correlation", "1"], "--correlation: expected a number >= 0 and < 1, not 1.0"),
        (["--correlation", "nan"], "--correlation: "),
        (["--time-drift-sq", "-1"], "--time-drift-sq: expected a finite number >= 0, not -1.0"),
        (
            ["--information-loss-sq", "nan"],
            "--information-loss-sq: expected a finite number >= 0, not nan",
        ),
        (["--client-drift-sq", "inf"], "--client-drift-sq: expected a finite number >= 0, not inf"),
        (["--cohort", "0"], "--cohort: expected a number >= 1, not 0"),
        (["--plot", "a.gif"], "cannot draw 'a.gif'"),
    ],
)
def test_weights_that_cannot_be(call, options, message):
    code, out, err = call("weights", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"chronofed: {message}")


# --- rates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", theory.CASES)
def test_all_algorithms_side_by_side(call, case):
    code, out, err = call("rates", "--case", case)
    assert (code, err) == (0, "")
    content = json.loads(call("rates", "--case", case, "--json")[1])
    defaults = {name: symbol.default for name, symbol in SYMBOLS.items()}
    assert content["settings"] == defaults
    assert [entry["algorithm"] for entry in content["algorithms"]] == list(theory.ALGORITHMS)
    for entry in content["algorithms"]:
        found = theory.rounds(entry["algorithm"], case, **defaults)
        assert entry["terms"] == found.terms
        assert (entry["total"], entry["phi"]) == (found.total, found.phi)
        assert entry["constants"]["c_A"] == found.constants.c_A
    heads = next(line for line in out.splitlines() if "formula" in line)
    assert [w for w in re.split(r"[┃\s]+", heads) if w] == ["formula", "SGD", "FedAvg", "CL", "CFL"]
    (total,) = [line for line in out.splitlines() if line.startswith("│ total")]
    for entry in content["algorithms"]:
        assert f" {rates._number(entry['total'])} │" in total
    assert "docs/errata.md#rates" in out
    assert ("│ φ " in out) == (case != "non-convex")
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize("case", theory.CASES)
def test_every_term_and_constant_has_its_formula(case):
    found = theory.rounds("cfl", case, epsilon=0.1, convexity=0.1)
    assert list(rates.TERMS[case]) == list(found.terms)
    assert list(rates.CONSTANTS) == list(type(found.constants).__dataclass_fields__)


def test_options_are_the_symbols_of_the_theory():
    assert set(SYMBOLS) == {"epsilon", *Problem.__annotations__}


def test_one_algorithm_with_settings(call):
    given = (
        "--algorithm",
        "cfl",
        "--time-drift-sq",
        "2",
        "--information-loss-sq",
        "2",
        "--client-drift-sq",
        "1",
    )
    content = json.loads(call("rates", *given, "--stateless", "--json")[1])
    (cfl,) = content["algorithms"]
    assert cfl["constants"]["c_A"] == cfl["stateless"] == pytest.approx(6 / 5)
    assert not content["returning"]
    (cfl,) = json.loads(call("rates", *given, "--json")[1])["algorithms"]
    assert (cfl["constants"]["c_A"], cfl["stateless"]) == (2, pytest.approx(6 / 5))
    assert cfl["safe_lr"] == theory.safe_lr(1, 10)
    assert "FedAvg ┃" not in call("rates", *given)[1]
    content = json.loads(call("rates", "--information-loss-sq", "inf", "--json")[1])
    assert content["settings"]["information_loss_sq"] is None  # JSON has no infinity
    totals = {entry["algorithm"]: entry["total"] for entry in content["algorithms"]}
    assert totals["fedavg"] == totals["cfl"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1 / 3, "0.3333"), (1234.5, "1,234"), (2e12, "2e+12")]
)
def test_digits(value, text):
    assert rates._number(value) == text


def test_footnotes_link_to_a_section_that_exists(request):
    page, anchor = rates.ERRATA.split("#")
    text = (request.config.rootpath / page).read_text(encoding="utf-8")
    assert anchor in [h.lower().replace(" ", "-") for h in re.findall(r"^## (.*)$", text, re.M)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time-drift-sq", "-1"], "--time-drift-sq: expected a finite number >= 0, not -1"),
        (["--client-slope-sq", "nan"], "--client-slope-sq: expected a finite number >= 0, not nan"),
        (["--epsilon", "0"], "--epsilon: expected a finite number > 0, not 0"),
        (
            ["--convexity", "2"],
            "--convexity: expected a number > 0 and at most smoothness, 1, not 2",
        ),
        (["--convexity", "0"], "--convexity: "),
        (["--over", "time-drift-sq"], "--over: needs --plot FILE"),
        (["--range", "1", "2"], "--range: needs --plot FILE"),
        (["--plot", "a.gif"], "cannot draw 'a.gif'"),
        (["--plot", "a.png", "--range", "2", "1"], "--range: expected two finite numbers"),
        (["--plot", "a.png", "--range", "-1", "1"], "--epsilon: expected a finite number > 0"),
        (["--plot", "a.png", "--range", "nan", "1"], "--range: expected two finite numbers"),
        (["--plot", "a.png", "--over", "gap"], "--over: the strongly-convex rate does not depend"),
        (
            ["--plot", "a.png", "--case", "convex", "--range", "1e-300", "1e-200"],
            "--range: the number of rounds becomes infinite there",
        ),
    ],
)
def test_rates_that_cannot_be(call, tmp_path, options, message):
    code, out, err = call("rates", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"chronofed: {message}")
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}


def test_names_that_cannot_be():
    for options in (["--algorithm", "adam"], ["--case", "concave"], ["--over", "mood"]):
        assert main(["rates", *options]) == 2


# --- pictures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        ("weights", "--signed", "--correlation", "0.8"),
        pytest.param(("rates", "--case", "convex"), marks=pytest.mark.slow),
    ],
)
def test_pictures(call, tmp_path, given):
    for name, magic in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        code, _, err = call(*given, "--plot", name)
        assert (code, err) == (0, f"chronofed: figure: {name}\n")
        first = (tmp_path / name).read_bytes()
        assert first.startswith(magic)
        assert json.loads(call(*given, "--plot", name, "--json")[1])
        assert (tmp_path / name).read_bytes() == first
    code, _, err = call(*given, "--plot", "no/a.png")
    assert (code, err.count("\n")) == (5, 1)


@pytest.mark.parametrize("over", [name.replace("_", "-") for name in SYMBOLS])
def test_any_parameter_can_be_drawn_over(call, monkeypatch, over):
    drawn = []
    monkeypatch.setattr(figures, "draw_lines", lambda *arguments: drawn.append(arguments))
    case = "non-convex" if over in ("gap", "c-m") else "convex"
    case = "strongly-convex" if over == "convexity" else case
    assert call("rates", "--plot", "a.png", "--over", over, "--case", case)[0] == 0
    ((lines, values, (below, beside), _, _),) = drawn
    assert list(lines) == ["SGD", "FedAvg", "CL", "CFL"]
    assert all(line.shape == values.shape for line in lines.values())
    assert (values[0] < values[-1], beside) == (True, "communication rounds")
    assert below.startswith(SYMBOLS[over.replace("-", "_")].about.split(",")[0])


def test_curves_are_the_rates(call, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "draw_lines", lambda *arguments: drawn.append(arguments))
    given = (
        "--plot",
        "a.png",
        "--over",
        "information-loss-sq",
        "--range",
        "0",
        "4",
        "--algorithm",
        "cfl",
    )
    assert call("rates", *given, "--time-drift-sq", "3")[0] == 0
    ((lines, values, (below, _), _, _),) = drawn
    assert (values[0], values[-1], below) == (0, 4, "information loss $R^2$")
    defaults = {name: symbol.default for name, symbol in SYMBOLS.items()}
    expected = theory.rounds(
        "cfl", "strongly-convex", **defaults | {"time_drift_sq": 3, "information_loss_sq": values}
    )
    assert lines["CFL"].tolist() == expected.total.tolist()


# --- help --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["weights", "rates"])
def test_help_says_what_is_a_square(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "time drift, squared: D^2" in " ".join(capsys.readouterr().out.split())


def test_choices_of_the_parser_are_those_of_the_theory():
    for algorithm in theory.ALGORITHMS:
        for case in theory.CASES:
            build_parser().parse_args(["rates", "--algorithm", algorithm, "--case", case])
