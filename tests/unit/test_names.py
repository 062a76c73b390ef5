"""Names of clients and periods wherever a client or a data set is shown, and numbers where there are none."""

import json

import pytest

from chronofed.core.names import Names
from chronofed.reports.figures import canvas, maps, samples
from chronofed.reports.figures import scenario as scenario_figure
from chronofed.reports.runs import RunView
from chronofed.runs.built import build
from chronofed.runs.load_spec import load
from chronofed.training.scenario_summary import describe, names_of
from tests.corpus.runs_helper import call, make_run, write_data
from tests.unit.test_samples_figure import client_states, item

CLIENTS = ["Alice [bold]Springs", "Perth $x$", "Sydney"]
PERIODS = [f"2024-0{month}" for month in range(1, 7)]
OTHER = "scenario={ kind = 'subsets', clients = 3, subsets = 2 }"


@pytest.fixture
def spec(workdir):
    path = write_data(workdir)
    rows = (workdir / "rows.csv").read_text()
    for number, name in enumerate(CLIENTS):
        rows = rows.replace(f"\nc{number},", f"\n{name},")
    (workdir / "rows.csv").write_text(rows)
    return path


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    pytest.importorskip("matplotlib")
    made = []
    save = canvas.save
    monkeypatch.setattr(canvas, "save", lambda *args: made.append(args[0]) or save(*args))
    return made


def texts(axes):
    return [text.get_text() for text in axes.texts]


def labels(ticks):
    return [tick.get_text() for tick in ticks]


def test_names_or_numbers():
    names = Names.recorded({"client_names": ["a"], "period_names": ["p"], "returning": True})
    assert [names.client(0), names.client(1), names.data_set(0), names.data_set(1)] == [
        "a",
        "client 1",
        "p",
        "data set 1",
    ]
    assert Names.recorded({}) == Names()
    assert Names.recorded({"returning": False}).client(2) == "new client 2"


def test_only_a_scenario_of_the_datas_own_clients_has_their_names(spec):
    built, other = build(load(spec)), build(load(spec, [OTHER, "rounds=2"]))
    names = names_of(built.scenario, built.task.data)
    assert (list(names.clients), list(names.periods)) == (CLIENTS, PERIODS)
    assert names_of(other.scenario, other.task.data) == Names()
    about = describe(other.scenario, other.task.data, 2)
    assert "client_names" not in about
    assert describe(built.scenario, built.task.data, 6)["client_names"] == CLIENTS


def test_the_text_of_a_scenario(spec):
    code, out, _ = call("scenario", spec, "--rounds", 2)
    assert code == 0
    for name in (*CLIENTS, "period", *PERIODS[:2]):
        assert name in out
    assert "0:" not in out
    _, out, _ = call("scenario", spec, "-s", OTHER, "-s", "rounds=2")
    assert "0:" in out
    assert "period" not in out


def test_the_json_of_a_scenario(spec):
    first = json.loads(call("scenario", spec, "--rounds", 1, "--json")[1])["plans"][0]
    assert first["period"] == "2024-01"
    assert [(c["client"], c["name"]) for c in first["clients"]] == list(enumerate(CLIENTS))
    other = call("scenario", spec, "-s", OTHER, "-s", "rounds=1", "--json")[1]
    plan = json.loads(other)["plans"][0]
    assert "period" not in plan
    assert "name" not in plan["clients"][0]


@pytest.mark.slow
def test_the_picture_of_a_scenario(spec, workdir, figures):
    assert call("scenario", spec, "--rounds", 4, "--plot", "s.png")[0] == 0
    (axes,) = figures[0].axes
    assert texts(axes) == CLIENTS
    (above,) = axes.child_axes
    assert labels(above.get_xticklabels()) == PERIODS[:4]
    call("scenario", spec, "-s", OTHER, "-s", "rounds=2", "--plot", "o.png")
    (axes,) = figures[1].axes
    assert texts(axes) == ["client 0", "client 1", "client 2"]
    assert axes.child_axes == []


def test_long_names_and_periods_make_room(spec):
    built = build(load(spec))
    data = built.task.data
    parts = (built.scenario, data.labels, len(data.classes), range(3))
    plain = scenario_figure.tabulate(*parts)
    long = scenario_figure.tabulate(*parts, names=Names(["n" * 40] * 3, PERIODS))
    assert plain.margins == (0.0, 0.0)
    assert long.names == ("n" * 23 + "…",) * 3
    assert long.margins == pytest.approx((1.0, 0.49))


def test_pictures_of_a_run(spec, workdir, figures):
    run = make_run(spec, workdir / "run")
    view = RunView.read(run.path)
    maps.draw_heatmap([view], "h.png")
    axes = figures[0].axes[0]
    assert labels(axes.get_yticklabels()) == CLIENTS
    assert labels(axes.get_xticklabels()) == PERIODS
    assert axes.get_xlabel() == "period"
    grid, classes = maps.recorded_grid(view, 3)
    assert grid.names == tuple(CLIENTS)
    assert [PERIODS[round_] for round_ in grid.rounds] == list(grid.periods)
    scenario_figure.draw_grid(grid, classes, "g.png")


def test_a_heatmap_without_names_has_numbers(spec, workdir, figures):
    run = make_run(spec, workdir / "run", scenario=OTHER.partition("=")[2])
    maps.draw_heatmap([RunView.read(run.path)], "h.png")
    axes = figures[0].axes[0]
    assert axes.get_xlabel() == "data set"
    assert not set(labels(axes.get_yticklabels())) & set(CLIENTS)


def test_many_names_are_thinned_out(figures):
    drawn = canvas.new_figure((4, 4))
    axes = drawn.subplots()
    axes.imshow([[0.0] * 100] * 200)
    names = Names([f"c{k}" for k in range(200)], [f"p{k}" for k in range(100)])
    maps._name_axes(axes, names, (200, 100))
    assert len(axes.get_yticks()) == maps.ROWS
    assert len(axes.get_xticks()) == maps.COLUMNS
    shown = [f"c{int(tick)}" for tick in axes.get_yticks()]
    assert labels(axes.get_yticklabels()) == shown


def test_the_picture_of_kept_samples(tmp_path, figures):
    states = client_states((item(0), item(1)), (item(1),))
    names = Names(["Alice", "Bob", "a station with a long name"], ["2024-01", "2024-02"])
    samples.draw_samples(states, tmp_path / "k.png", names=names)
    named = texts(figures[0].axes[0])
    assert {"Alice", "a station with a long n…", "round 0, 2024-01", "round 1, 2024-02"} <= {*named}
    samples.draw_samples(states, tmp_path / "n.png")
    assert {"client 0", "client 2", "round 0", "round 1"} <= {*texts(figures[1].axes[0])}
    wide, narrow = (figure.get_size_inches()[0] for figure in figures)
    assert wide > narrow
