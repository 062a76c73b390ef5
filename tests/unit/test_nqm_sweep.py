"""The sweep over learning rates: what is chosen, and how it is judged, on losses made by hand."""

import json

import numpy as np
import pytest

from chronofed.cli.main import main
from chronofed.reports.figures.nqm import draw_panels
from chronofed.theory import nqm
from chronofed.theory.nqm.model import PAPER
from chronofed.theory.nqm.sweep import LRS, _cell, paper_lr


def losses():
    """Three learning rates, two seeds, ten rounds: the second is best on average, the third diverges."""
    made = np.empty((3, 2, 11))
    made[:, :, :9] = 10.0
    made[0, 0, 9:], made[0, 1, 9:] = (2.0, 1.0), (4.0, 3.0)
    made[1, 0, 9:], made[1, 1, 9:] = (1.0, 2.0), (2.0, 1.0)
    made[2, :, 9:] = np.inf
    return made


def test_judgement_by_hand():
    cell = _cell("BRD-SL-SC", "CFL", np.array([0.1, 0.25, 0.3]), losses())
    assert (cell.lr, cell.loss, cell.final) == (0.25, 1.5, 1.5)
    assert cell.deviation == pytest.approx(0.5**0.5)  # of 2 and 1, with n - 1
    alone = _cell("BRD-SL-SC", "CFL", np.array([0.1, 0.25, 0.3]), losses()[:, :1])
    assert alone.deviation is None
    assert cell.likely == (0.1, 0.25)  # the first seed prefers 0.1
    assert cell.variation == pytest.approx((81 + 1 + 64 + 1) / 2)
    assert cell.tolerated == cell.stable == 0.25  # 0.1 has 2.5 / 1.5 of the best loss
    assert (cell.paper, cell.excess, cell.agreement) == (0.25, 1.0, "likely")
    assert cell.curve.shape == (3, 11)
    assert cell.curve[:, -1].tolist() == pytest.approx([1.1, 1.5, 1.9])


def test_agreement_with_the_paper():
    rates = np.array([0.2, 0.25, 0.3])
    flat = np.full((3, 1, 6), 5.0)
    flat[:, :, 1:] = np.array([[[1.0]], [[1.05]], [[9.0]]])
    assert _cell("BRD-SL-SC", "CFL", rates, flat).agreement == "near"
    flat[1, :, 1:] = 1.2
    assert _cell("BRD-SL-SC", "CFL", rates, flat).agreement == "no"
    assert _cell("BRD-SL-SC", "CFL", rates[:1], flat[:1]).excess is None
    assert _cell("BRD-SL-SC", "CFL", rates[:1], flat[:1]).agreement == "no"
    assert _cell("BRD-SL-SC", "CFL-0.01", rates, flat).agreement == ""


def test_everything_diverges():
    wild = {"own": nqm.Model(steps=5, rounds=300)}
    for cell in nqm.sweep(wild, lrs=[9.0], seeds=2):
        assert cell.stable == 0.0
        assert cell.loss == np.inf


def test_the_papers_table():
    names = list(nqm.settings(nqm.PRESETS["p1"]))
    assert len(names) == 8
    assert {len(row) for row in PAPER.values()} == {8}
    assert paper_lr("SRD-SL-SC", "CFL") == 0.2
    assert paper_lr("BRD-SL-GC", "FedProx") == 0.26
    assert paper_lr("BRD-LL-GC", "FedAvg") == 0.02
    assert paper_lr("BRD-LL-GC", "CFL-0.01") is None
    assert paper_lr("own", "CFL") is None
    assert all(np.isclose(LRS, rate).any() for row in PAPER.values() for rate in row)


def test_settings_are_the_papers():
    found = nqm.settings(nqm.PRESETS["p3"])
    model = found["SRD-LL-GC"]
    assert (model.smoothness, model.convexity, model.time_drift_sq) == (20.0, 0.0, 0.01)
    assert (model.client_drift_sq, model.noise_sq) == (0.01, 1e-5)
    assert (model.dimension, model.steps, model.rounds, model.start) == (20, 5, 200, "near")


@pytest.fixture(scope="module")
def cells():
    small = nqm.settings(nqm.Model(rounds=10, dimension=5))
    return list(nqm.sweep(small, lrs=[0.05, 0.2], seeds=3))


def test_every_setting_and_algorithm(cells):
    assert len({(cell.setting, cell.algorithm) for cell in cells}) == 8 * 5
    assert {cell.lr for cell in cells} == {0.05, 0.2}


@pytest.mark.some(1)
@pytest.mark.parametrize("ending", ["png", "svg"])
@pytest.mark.slow
def test_picture(cells, tmp_path, ending):
    few = cells[:10]  # two settings; all are in the test below
    path = draw_panels(few, tmp_path / f"panels.{ending}")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    assert draw_panels(few, tmp_path / f"again.{ending}").read_bytes() == content


def test_picture_has_a_panel_for_every_setting(cells, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "chronofed.reports.figures.canvas.save", lambda figure, _: drawn.append(figure)
    )
    draw_panels(cells, "x.png")
    draw_panels(cells[:25], "x.png")  # five settings: the last row is not full
    whole, part = ([a for a in figure.axes if a.get_visible()] for figure in drawn)
    assert (len(whole), len(part), len(drawn[1].axes)) == (8, 5, 8)
    assert whole[0].get_title() == "small drift, small $L$, strongly convex"
    assert [line.get_label() for line in whole[3].get_lines()] == [a.name for a in nqm.ALGORITHMS]
    assert "CFL-0.01: 0." in whole[0].texts[0].get_text()


# --- the command


def test_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["nqm", "--settings", "brd-sl-sc", "SRD-LL-SC", "--seeds", "4", "--lr-grid"]
    assert main([*options, "0.02:0.3:8", "--plot", "panels.svg"]) == 0
    out, err = capsys.readouterr()
    assert "BRD-SL-SC" in out
    assert "SRD-LL-SC" in out
    assert "0.25 ≠" in out or "0.25 =" in out or "0.25 ~" in out
    assert "figure: panels.svg" in err
    assert (tmp_path / "panels.svg").stat().st_size > 10_000
    assert main([*options, "0.25,0.02,0.02", "--preset", "p2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 10
    assert {cell["lr"] for cell in found} <= {0.02, 0.25}
    assert set(found[0]["curve"]) == {"low", "median", "high"}
    assert len(found[0]["curve"]["median"]) == 31


def test_json_has_no_infinity(capsys):
    options = ["nqm", "--settings", "BRD-LL-SC", "--seeds", "1", "--lr-grid", "1e9", "--json"]
    assert main([*options, "--preset", "p3"]) == 0
    text = capsys.readouterr().out
    assert "Infinity" not in text
    assert "NaN" not in text
    assert json.loads(text)[0]["loss"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--settings", "XRD"], "--settings: unknown setting 'XRD'; known: SRD-SL-SC, "),
        (["--seeds", "0"], "--seeds: expected a number from 1 to 2000, not 0"),
        (["--seeds", "100000"], "--seeds: expected a number from 1 to 2000, not 100000"),
        (["--lr-grid", "0:1"], "--lr-grid: expected LOW:HIGH:COUNT or a list"),
        (["--lr-grid", "0.1,-1"], "--lr-grid: expected"),
        (["--lr-grid", "nan"], "--lr-grid: expected"),
        (["--lr-grid", "1:2:0"], "--lr-grid: expected"),
        (["--plot", "panels.gif"], "cannot draw 'panels.gif'"),
    ],
)
def test_bad_input(capsys, options, message):
    assert main(["nqm", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"chronofed: {message}")
    assert err.count("\n") == 1
