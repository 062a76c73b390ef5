"""What can be typed. Nothing heavy is imported here: help must be quick."""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

ENGINES = ("auto", "serial", "threads", "processes", "batched")

EXIT_CODES = """\
exit codes:
  0 success                   4 run directory missing, in use or damaged
  1 unexpected failure        5 could not write (disk full, permissions)
  2 wrong usage or spec       6 an optional dependency is missing
  3 data missing or damaged   7 training diverged        130 interrupted
"""


class Symbol(NamedTuple):
    """A number that the paper's rates depend on: how it is written, and what it is unless given."""

    symbol: str
    default: float
    about: str


SYMBOLS = {
    "epsilon": Symbol("epsilon", 0.01, "accuracy"),
    "smoothness": Symbol("L", 1.0, "smoothness"),
    "convexity": Symbol("mu", 0.1, "strong convexity"),
    "client_drift": Symbol("G^2", 1.0, "client drift, a square"),
    "drift": Symbol("D^2", 1.0, "time drift, a square"),
    "loss": Symbol("R^2", 0.5, "information loss, a square; may be inf"),
    "client_slope": Symbol("B^2", 0.0, "growth of the client drift with the gradient, a square"),
    "time_slope": Symbol("A^2", 0.0, "growth of the time drift with the gradient, a square"),
    "covariance": Symbol("F^2", 0.0, "covariance of time drifts, a square"),
    "covariance_slope": Symbol("C^2", 0.0, "growth of the covariance with the gradient, a square"),
    "noise": Symbol("sigma^2", 1.0, "variance of stochastic gradients"),
    "clients": Symbol("N", 10.0, "clients of a round"),
    "steps": Symbol("K", 10.0, "local steps"),
    "server_lr": Symbol("eta_g", 1.0, "global step size"),
    "distance": Symbol("H", 1.0, "squared distance of the start from the optimum"),
    "gap": Symbol("f_0 - f_*", 1.0, "objective at the start above the least"),
    "c_m": Symbol("c_m", 1.0, "constant of the non-convex rate"),
}


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:  # noqa: ANN401
        from chronofed import __version__

        sys.stdout.write(f"chronofed {__version__}\n")
        parser.exit()


class _Commands:
    """Adds commands with the options that several of them share."""

    def __init__(self, root: argparse.ArgumentParser, what: str = "command") -> None:
        self._parsers = root.add_subparsers(dest=what, required=True, metavar=what.upper())

    def add(self, name: str, text: str, *shared: str) -> argparse.ArgumentParser:
        parser = self._parsers.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        for option in shared:
            getattr(self, f"_{option}")(parser)
        return parser

    @staticmethod
    def _json(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    @staticmethod
    def _quiet(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")

    @staticmethod
    def _engine(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--engine",
            choices=ENGINES,
            help="where clients run (default: what the specification says)",
        )
        parser.add_argument("--workers", type=int, metavar="N", help="clients side by side")

    @staticmethod
    def _data(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--data", type=Path, metavar="DIR", help="folder of data files")

    @staticmethod
    def _samples(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--samples",
            type=Path,
            metavar="FILE",
            help="draw what clients keep in the end (.png, .svg or .pdf)",
        )

    @staticmethod
    def _track(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--track",
            metavar="NAME",
            help="tell others of every evaluation: tensorboard, or package.module:factory",
        )

    @staticmethod
    def _picture(parser: argparse.ArgumentParser) -> None:
        text = "draw it (.png, .svg or .pdf)"
        parser.add_argument("--plot", type=Path, metavar="FILE", help=text)

    @staticmethod
    def _spec(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("spec", type=Path, metavar="SPEC.toml", help="the specification")
        parser.add_argument(
            "-s",
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="change a setting, e.g. -s train.lr=0.05 (again for more)",
        )


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    root = argparse.ArgumentParser(
        prog="chronofed",
        description="Federated learning on data that keeps changing.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = _Commands(root)
    _add_running(commands)
    _add_looking(commands)
    _add_theory(commands)
    _add_quadratic(commands)
    _add_privacy(commands)
    _add_timing(commands)
    _add_paper(commands)
    _add_sweep(commands)
    _add_flower(commands)
    return root


def _add_running(commands: _Commands) -> None:
    demo = commands.add(
        "demo", "compare FedAvg with CFL-Core-Set on embedded data", "quiet", "json"
    )
    demo.add_argument("--rounds", type=int, default=None, help="rounds of each run")
    demo.add_argument("--seeds", type=int, default=3, help="number of seeds (default 3)")
    demo.add_argument("-o", "--output", type=Path, metavar="DIR", help="where to put the runs")

    shared = ("engine", "data", "samples", "track", "quiet", "json")
    run = commands.add("run", "carry out an experiment", "spec", *shared)
    run.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory of the run")

    resume = commands.add("resume", "continue a run that was stopped", *shared)
    resume.add_argument("run", type=Path, metavar="RUN", help="directory of the run")


def _add_looking(commands: _Commands) -> None:
    compare = commands.add("compare", "compare runs in a table", "json")
    _add_runs(compare)
    compare.add_argument("--html", type=Path, metavar="FILE", help="write a report with curves")

    report = commands.add("report", "write a page about runs, to send to a colleague", "json")
    _add_runs(report)
    report.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default report.html)",
    )
    report.add_argument("--title", metavar="TEXT", help="what is written above it")

    watch = commands.add("watch", "follow runs on a page in the browser, on this machine", "json")
    watch.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="DIR",
        help="a folder with runs below it, or a run (default runs)",
    )
    watch.add_argument(
        "--port", type=int, default=8765, help="where to listen (default 8765; 0 for any)"
    )
    watch.add_argument("--open", action="store_true", help="open the page in a browser")

    _add_plot(commands)

    scenario = commands.add(
        "scenario", "show who has which data when", "spec", "data", "picture", "json"
    )
    scenario.add_argument("--rounds", type=int, default=12, help="rounds to show (default 12)")

    data = commands.add("data", "list, find or download data sets", "data", "json", "quiet")
    data.add_argument("action", choices=("list", "get", "where"), help="what to do")
    data.add_argument("name", nargs="?", help="a data set (for get and where)")

    _add_client(commands)
    commands.add("methods", "list backbones, memories and weights, and what they need", "json")
    commands.add("doctor", "show versions, threads and the data found", "data", "json")


def _add_client(commands: _Commands) -> None:
    client = commands.add("client", "inspect what a client keeps, or forget some of it", "json")
    client.add_argument("action", choices=("inspect", "forget"), help="what to do")
    client.add_argument("vault", type=Path, metavar="VAULT", help="the client's file")
    client.add_argument(
        "--before", metavar="DATE", help="forget data from before, e.g. 2026-01-31 (UTC)"
    )
    client.add_argument(
        "--rows", nargs="+", metavar="ID", help="forget rows, by their names in the id column"
    )
    client.add_argument(
        "--keys", nargs="+", type=int, metavar="KEY", help="forget data sets, as inspect names them"
    )
    client.add_argument("--yes", action="store_true", help="do not ask")


def _add_plot(commands: _Commands) -> None:
    plot = commands.add("plot", "draw runs for a paper", "json")
    kinds = ("curves", "heatmap", "weights", "information-loss", "scenario")
    plot.add_argument("kind", choices=kinds, help="what to draw")
    _add_runs(plot)
    text = "the figure (.pdf, .svg or .png)"
    plot.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=text)
    plot.add_argument(
        "--measure",
        default="test_accuracy",
        metavar="KEY",
        help="of curves: a key of metrics.jsonl (default test_accuracy)",
    )
    plot.add_argument(
        "--window", type=int, default=1, help="of curves: evaluations in a moving mean (default 1)"
    )
    plot.add_argument(
        "--show", choices=("lost", "accuracy"), default="lost", help="of a heatmap (default lost)"
    )
    plot.add_argument("--round", type=int, help="of a heatmap: after which round (default last)")
    plot.add_argument(
        "--rounds", type=int, default=20, help="of a scenario: rounds to show (default 20)"
    )


def _add_runs(parser: argparse.ArgumentParser) -> None:
    text = "directories of runs, or folders with runs below them"
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=text)


def _add_timing(commands: _Commands) -> None:
    bench = commands.add("bench", "time rounds of fixed workloads on every engine", "json")
    bench.add_argument(
        "workloads",
        nargs="*",
        default=["A", "B", "C", "R"],
        metavar="WORKLOAD",
        help="A, B, C or R",
    )
    bench.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        default=list(ENGINES),
        metavar="ENGINE",
        help=f"some of {', '.join(ENGINES)}",
    )
    bench.add_argument("--workers", type=int, metavar="N", help="clients side by side")
    bench.add_argument("--rounds", type=int, default=7, help="rounds of each (default 7)")

    profile = commands.add("profile", "show where the time of a round goes", "spec", "data", "json")
    profile.add_argument("--rounds", type=int, default=10, help="rounds to time (default 10)")


def _add_paper(commands: _Commands) -> None:
    paper = commands.add(
        "paper", "make the paper's tables and figures again", "data", "quiet", "json"
    )
    paper.add_argument("action", choices=("list", "run", "report"), help="what to do")
    paper.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="tables and figures (see: chronofed paper list), files of one's own, or: all",
    )
    paper.add_argument(
        "--scale", default="cpu", help="cpu (smaller, default) or paper (to the letter)"
    )
    paper.add_argument(
        "--seeds", metavar="LIST", help="seeds of every run (default: the recipe's, mostly 0,1,2)"
    )
    paper.add_argument(
        "--jobs", type=int, metavar="N", help="runs side by side (default: one for each core)"
    )
    paper.add_argument("--device", default="cpu", help="where models are, e.g. cuda (default cpu)")
    runs = Path("runs") / "paper"
    paper.add_argument(
        "--runs", type=Path, default=runs, metavar="DIR", help=f"folder of runs (default {runs})"
    )
    paper.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="where to put a report (default RUNS/report)",
    )


def _add_sweep(commands: _Commands) -> None:
    sweep = commands.add("sweep", "tune settings of an experiment", "spec", "data", "quiet", "json")
    sweep.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="KEY=VALUES",
        help="what to try: a range, train.lr=0.01:0.3, or a list, train.epochs=1,2 (again for more)",
    )
    sweep.add_argument("--trials", type=int, default=20, help="how many to try (default 20)")
    sweep.add_argument(
        "--measure", default="anytime", help="number of the summary to raise (default anytime)"
    )
    sweep.add_argument(
        "--seeds", default="0", metavar="LIST", help="judge by the mean over these (default 0)"
    )
    sweep.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of the runs (default runs/sweep-NAME)",
    )


def _add_flower(commands: _Commands) -> None:
    flower = commands.add("flower", "run on real clients, through Flower")
    actions = _Commands(flower, "action")

    new = actions.add("new", "write a ready Flower app", "data")
    new.add_argument("folder", type=Path, metavar="DIR", help="folder of the app")
    new.add_argument("spec", type=Path, nargs="?", metavar="SPEC.toml", help="its specification")
    new.add_argument("-s", "--set", action="append", default=[], metavar="KEY=VALUE")

    local = actions.add(
        "local", "run SuperLink and SuperNodes on this machine", "spec", "data", "quiet", "json"
    )
    local.add_argument("--clients", type=int, default=3, help="SuperNodes (default 3)")
    local.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory of the run")
    text = "clients' own data: a file with [source]; {client} in its name is the number"
    local.add_argument("--source", metavar="FILE", help=text)
    local.add_argument("--quorum", type=int, metavar="K", help="answers that a round needs")
    local.add_argument("--deadline", type=float, metavar="S", help="seconds until it goes on")
    local.add_argument("--muster", type=float, metavar="S", help="seconds to wait for first")

    keys = actions.add("keys", "make certificates and key pairs", "json")
    keys.add_argument("folder", type=Path, metavar="DIR", help="where to put them")
    keys.add_argument("--clients", type=int, required=True, help="number of SuperNodes")
    keys.add_argument(
        "--host",
        nargs="+",
        default=["localhost", "127.0.0.1"],
        help="names and addresses of the SuperLink's machine (default: this one only)",
    )
    keys.add_argument("--days", type=int, default=365, help="valid for so long (default 365)")

    warm = actions.add("warm", "run a SuperNode whose app processes start at once")
    warm.add_argument("program", nargs="*", metavar="PROGRAM", help="after --: what to run")


def _add_quadratic(commands: _Commands) -> None:
    nqm = commands.add(
        "nqm", "find best learning rates on the noisy quadratic model", "picture", "quiet", "json"
    )
    nqm.add_argument(
        "--preset",
        choices=("p1", "p2", "p3"),
        default="p1",
        help="what the paper leaves open: size, steps, rounds, start (default p1)",
    )
    nqm.add_argument(
        "--settings",
        nargs="+",
        metavar="NAME",
        help="some of the paper's eight settings, e.g. BRD-SL-SC (default all)",
    )
    nqm.add_argument("--seeds", type=int, default=100, help="number of seeds (default 100)")
    nqm.add_argument(
        "--lr-grid",
        metavar="GRID",
        help="learning rates as LOW:HIGH:COUNT or a list (default 0.01:0.4:40)",
    )


def _add_privacy(commands: _Commands) -> None:
    privacy = commands.add("privacy", "show the privacy loss of rounds with noise", "json")
    privacy.add_argument(
        "--noise", type=float, required=True, metavar="Z", help="noise multiplier of the method"
    )
    privacy.add_argument("--rounds", type=int, required=True, metavar="T", help="rounds")
    privacy.add_argument(
        "--delta",
        type=float,
        default=1e-5,
        metavar="D",
        help="probability left over (default 1e-5)",
    )
    privacy.add_argument(
        "--sampling",
        type=float,
        default=1.0,
        metavar="Q",
        help="probability with which each client takes part, by itself and unseen (default 1)",
    )
    privacy.add_argument(
        "--releases",
        type=int,
        default=1,
        metavar="K",
        help="vectors that a client sends in a round: 2 for scaffold, mime, mimelite, fednova (default 1)",
    )


def _add_theory(commands: _Commands) -> None:
    weights = commands.add("weights", "show optimal round weights", "picture", "json")
    weights.add_argument("--rounds", type=int, default=4, help="rounds to weigh (default 4)")
    for name, default, about in (
        ("drift", 1.0, "time drift, a square: D^2"),
        ("loss", 0.5, "information loss, a square: R^2"),
        ("correlation", 0.0, "correlation of time drifts one round apart"),
        ("client-drift", 0.0, "client drift, a square: G^2; for clients that never come back"),
    ):
        text = f"{about} (default {default:g})"
        weights.add_argument(f"--{name}", type=float, default=default, metavar="X", help=text)
    weights.add_argument(
        "--cohort", type=int, default=1, metavar="N", help="clients that are averaged (default 1)"
    )
    weights.add_argument(
        "--signed", action="store_true", help="allow negative weights, as the paper does"
    )

    rates = commands.add(
        "rates", "show how many rounds algorithms need, by the theorems", "picture", "json"
    )
    rates.add_argument(
        "--algorithm", choices=("sgd", "fedavg", "cl", "cfl"), help="only this one (default all)"
    )
    rates.add_argument(
        "--case",
        choices=("strongly-convex", "convex", "non-convex"),
        default="strongly-convex",
        help="kind of objectives (default strongly-convex)",
    )
    rates.add_argument("--stateless", action="store_true", help="clients never come back")
    options = {name.replace("_", "-"): symbol for name, symbol in SYMBOLS.items()}
    rates.add_argument(
        "--over", choices=options, metavar="NAME", help="option to plot over (default epsilon)"
    )
    rates.add_argument(
        "--range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="its least and largest value"
    )
    for name, symbol in options.items():
        text = f"{symbol.about}: {symbol.symbol} (default {symbol.default:g})"
        rates.add_argument(f"--{name}", type=float, default=symbol.default, metavar="X", help=text)
