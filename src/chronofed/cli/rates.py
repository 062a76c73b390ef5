"""The command ``chronofed rates``."""

import math
import re
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any, NamedTuple

from chronofed.cli.options import add_json, add_plot, check_numbers
from chronofed.cli.output import emit, emit_json, note
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

    from chronofed import theory

GROUP = "theory"
HELP = "show how many rounds algorithms need, by the theorems"

NAMES = {"sgd": "SGD", "fedavg": "FedAvg", "cl": "CL", "cfl": "CFL"}
ERRATA = "docs/errata.md#rates"
# Points of a curve.
POINTS = 200


class Symbol(NamedTuple):
    """An option: the paper's symbol, the default of this command, and a few words.

    Names are those of :class:`~chronofed.theory.symbols.Problem`, which has the ranges. They are repeated here
    because the theory imports numpy, which would triple the time of ``--help``.
    """

    symbol: str
    default: float
    about: str


SYMBOLS = {
    "epsilon": Symbol("epsilon", 0.01, "accuracy"),
    "smoothness": Symbol("L", 1.0, "smoothness"),
    "convexity": Symbol("mu", 0.1, "strong convexity"),
    "client_drift_sq": Symbol("G^2", 1.0, "client drift, squared"),
    "time_drift_sq": Symbol("D^2", 1.0, "time drift, squared"),
    "information_loss_sq": Symbol("R^2", 0.5, "information loss, squared; may be inf"),
    "client_slope_sq": Symbol("B^2", 0.0, "growth of the client drift with the gradient, squared"),
    "time_slope_sq": Symbol("A^2", 0.0, "growth of the time drift with the gradient, squared"),
    "covariance": Symbol("F^2", 0.0, "covariance of time drifts"),
    "covariance_slope": Symbol("C^2", 0.0, "growth of the covariance with the squared gradient"),
    "noise_sq": Symbol("sigma^2", 1.0, "variance of stochastic gradients"),
    "clients": Symbol("N", 10.0, "clients of a round"),
    "steps": Symbol("K", 10.0, "local steps"),
    "server_lr": Symbol("eta_g", 1.0, "global step size"),
    "distance_sq": Symbol("H", 1.0, "squared distance from the start to the optimum"),
    "gap": Symbol("f_0 - f_*", 1.0, "objective at the start minus its minimum"),
    "c_m": Symbol("c_m", 1.0, "constant of the non-convex rate"),
}

TERMS = {
    "strongly-convex": {
        "curvature": "L c_O / μ (a)",
        "noise": "σ² / (μ N K ε)",
        "drift": "c_A / (μ ε)",
        "early rounds": "√(c_B / (μ ε))",
        "local steps": "√(c_C / (μ² ε))",
        "early local steps": "∛(c_D / (μ² ε))",
    },
    "convex": {
        "curvature": "L c_O H / ε (a)",
        "early rounds": "√(c_B H) / ε",
        "early local steps": "∛(c_D H²) / ε",
        "noise": "σ² H / (N K ε²)",
        "drift": "c_A H / ε²",
        "local steps": "√(c_C H² / ε³)",
    },
    "non-convex": {
        "descent": "(L (f₀ - f*))² / (N K c_m² ε²) (a)",
        "drift and noise": "(√(K N) c_R1² / L + σ² / √(N K))² / ε² (a)",
        "early rounds": "√(K N) c_R2 / (c_m ε L)",
    },
}
CONSTANTS = {
    "c_O": "1 + B² + max(A², C²) (b)",
    "c_A": "G² + min(F², D²) + M² c_R1 (c)",
    "c_B": "M² c_R2",
    "c_C": "L (σ² / K + c_A) / η_g²",
    "c_D": "L c_B / η_g²",
    "c_R1": "R² / (R² + M²)",
    "c_R2": "(M² / (R² + M²))²",
}
OTHERS = {
    "stateless": "c_A with M² + G² for M², without G²",
    "phi": "R M² / (R² + M²) ‖w₀ - w*‖ (d)",
    "safe_lr": "(√(3 + 4 c_O η_g²) - 2 η_g √c_O) / (12 K L √c_O) (e)",
}
LABELS = {"stateless": "c_A, stateless", "phi": "φ", "safe_lr": "safe η_l"}
GOALS = {
    "strongly-convex": "an error of ε + φ",
    "convex": "an error of ε + φ",
    "non-convex": "a mean squared gradient of ε",
}
FIRST_NOTES = {
    "strongly-convex": "(a) the paper's table of rates has no L",
    "convex": "(a) the paper has no L",
    "non-convex": "(a) the proof gives no c_m; the paper has no SGD here: this is FedAvg without its drift",
}
NOTES = (
    "(b) the paper has 1 + A² + max(B², C²)",
    "(c) the paper has no F²",
    "(d) largest at R = M; the paper lets it grow with R",
    "(e) the paper's theorem has 6, its proof 12; the paper's own rates exceed it about 16 times",
)


class Rate(NamedTuple):
    """All numbers of one algorithm.

    Attributes:
        algorithm: Its name.
        rounds: Terms and constants of the rate.
        stateless: :math:`c_A` if clients never come back.
        safe_lr: The largest local learning rate that the proof allows.
    """

    algorithm: str
    rounds: "theory.Rounds"
    stateless: float
    safe_lr: float

    @property
    def others(self) -> dict[str, Any]:
        """Numbers that are neither a term nor a constant of the rate."""
        return {"stateless": self.stateless, "phi": self.rounds.phi, "safe_lr": self.safe_lr}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--algorithm", choices=NAMES, help="only this one (default: all)")
    text = "kind of objectives (default strongly-convex)"
    parser.add_argument("--case", choices=TERMS, default="strongly-convex", help=text)
    parser.add_argument("--stateless", action="store_true", help="clients never come back")
    symbols = {name.replace("_", "-"): symbol for name, symbol in SYMBOLS.items()}
    text = "option on the horizontal axis of --plot (default epsilon)"
    parser.add_argument("--over", choices=symbols, metavar="NAME", help=text)
    text = "its range (default: from a tenth to ten times its value)"
    parser.add_argument("--range", type=float, nargs=2, metavar=("LOW", "HIGH"), help=text)
    for name, symbol in symbols.items():
        text = f"{symbol.about}: {symbol.symbol} (default {symbol.default:g})"
        parser.add_argument(f"--{name}", type=float, default=symbol.default, metavar="X", help=text)
    add_plot(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    """Show the rounds that algorithms need, term by term; plot them over a parameter if asked for."""
    from chronofed import theory

    finite = [name for name in SYMBOLS if math.isfinite(getattr(options, name))]
    check_numbers(options, *finite)
    settings = {name: getattr(options, name) for name in SYMBOLS}
    algorithms = [options.algorithm] if options.algorithm else list(theory.ALGORITHMS)
    _check_plot(options)
    try:
        found = [_rate(name, options.case, settings, options.stateless) for name in algorithms]
        if options.plot:
            _plot(options, algorithms, settings)
            note(f"figure: {options.plot}")
    except ValueError as error:
        raise SpecError(f"--{str(error).replace('_', '-')}") from None
    if options.json:
        emit_json(_document(options, settings, found))
    else:
        emit(_table(options, found))
        emit("\n".join(_footnotes(options)))
    return 0


def _rate(name: str, case: str, settings: dict[str, Any], stateless: bool) -> Rate:
    from chronofed import theory

    found = theory.rounds(name, case, stateless=stateless, **settings)
    once = theory.rounds(name, case, stateless=True, **settings)
    smoothness, steps, server_lr = (settings[s] for s in ("smoothness", "steps", "server_lr"))
    safe = theory.safe_lr(smoothness, steps, server_lr, found.constants.c_O)
    return Rate(name, found, float(once.constants.c_A), float(safe))


def _check_plot(options: Namespace) -> None:
    from chronofed.reports.figures import canvas

    if options.plot:
        canvas.check(options.plot)
    elif options.over or options.range:
        raise SpecError(f"--{'over' if options.over else 'range'}: needs --plot FILE")


def _plot(options: Namespace, algorithms: list[str], settings: dict[str, float]) -> None:
    import numpy as np

    from chronofed import theory
    from chronofed.reports.figures.theory import draw_lines

    over = (options.over or "epsilon").replace("-", "_")
    values = _values(options.range or _default_range(over, settings))
    lines = {}
    for name in algorithms:
        varied: Any = settings | {over: values}
        rate = theory.rounds(name, options.case, stateless=options.stateless, **varied)
        lines[NAMES[name]] = np.asarray(rate.total)
    if not all(np.isfinite(line).all() for line in lines.values()):
        raise ValueError("range: the number of rounds becomes infinite there; choose another range")
    if not any(np.ptp(line) > 0 for line in lines.values()):
        msg = f"over: the {options.case} rate does not depend on {over}; choose another parameter"
        raise ValueError(msg)
    symbol = re.sub("epsilon|mu|sigma|eta", r"\\\g<0>", SYMBOLS[over].symbol)
    label = f"{SYMBOLS[over].about.split(',')[0]} ${symbol}$"
    title = f"{options.case}, without the constant of O()"
    draw_lines(lines, values, (label, "communication rounds"), options.plot, title)


def _default_range(over: str, settings: dict[str, float]) -> tuple[float, float]:
    """Return two decades around the value that is set, within the legal range."""
    middle = settings[over]
    if not 0 < middle < math.inf:
        return 0.01, 10.0
    least = 1.0 if over in ("clients", "steps") else 0.0
    most = settings["smoothness"] if over == "convexity" else math.inf
    low = settings["convexity"] if over == "smoothness" else least
    return max(low, middle / 10), min(most, middle * 10)


def _values(bounds: tuple[float, float]) -> "NDArray[np.float64]":
    import numpy as np

    low, high = bounds
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"range: expected two finite numbers, the smaller first, not {low} {high}")
    return np.geomspace(low, high, POINTS) if low > 0 else np.linspace(low, high, POINTS)


def _document(
    options: Namespace, settings: dict[str, float], found: list[Rate]
) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "case": options.case,
        "returning": not options.stateless,
        "settings": _finite(settings),
        "algorithms": [
            {
                "algorithm": rate.algorithm,
                "terms": _finite(rate.rounds.terms),
                **_finite({"total": rate.rounds.total}),
                "constants": _finite(asdict(rate.rounds.constants)),
                **_finite(rate.others),
            }
            for rate in found
        ],
    }


def _finite(values: Any) -> dict[str, float | None]:
    """Replace infinity, which JSON lacks, by null."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _table(options: Namespace, found: list[Rate]) -> "Table":
    from rich.table import Table

    title = (
        f"communication rounds until {GOALS[options.case]}, ε = {options.epsilon:g}, {options.case}"
    )
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("formula")
    for rate in found:
        table.add_column(NAMES[rate.algorithm], justify="right", no_wrap=True)
    for name, formula in TERMS[options.case].items():
        table.add_row(name, formula, *(_number(rate.rounds.terms[name]) for rate in found))
    table.add_section()
    totals = (_number(rate.rounds.total) for rate in found)
    table.add_row("total", "sum of the terms", *totals, style="bold", end_section=True)
    for name, formula in CONSTANTS.items():
        cells = (_number(getattr(rate.rounds.constants, name)) for rate in found)
        table.add_row(name, formula, *cells)
    table.add_section()
    for name, formula in OTHERS.items():
        # The non-convex theorem has no bias.
        if name == "phi" and options.case == "non-convex":
            continue
        table.add_row(LABELS[name], formula, *(_number(rate.others[name]) for rate in found))
    return table


def _footnotes(options: Namespace) -> list[str]:
    return [
        "These are the terms inside O(): use them to compare, not to predict a number of rounds.",
        "M² = max(0, D² - F²), H = ‖w₀ - w*‖²." + " M² includes G²." * options.stateless,
        FIRST_NOTES[options.case],
        *NOTES,
        "SGD takes one step on what N clients see in K steps: it has no c_C and no c_R1.",
        f"Differences from the paper's formulas are explained in {ERRATA}.",
    ]


def _number(value: Any) -> str:
    """Show four digits, and large numbers in full as long as they are readable."""
    return f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:.4g}"
