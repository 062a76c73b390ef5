"""The figure of the samples that clients keep, and its command-line option."""

import sys

import numpy as np
import pytest
import torch

from chronofed.cli.main import main
from chronofed.clients.state import ClientState
from chronofed.core.errors import MissingExtraError, SpecError, StorageError
from chronofed.methods.memories import MemoryItem
from chronofed.reports.figures import samples as report
from chronofed.reports.figures.samples import MOST_CLIENTS, check_picture, draw_samples, latest

CLASSES = ("cat", "dog", "$eel^$")  # names are taken as they are, not as formulas


def item(round_: int, n: int = 6, channels: int = 1, *, dtype=torch.uint8) -> MemoryItem:
    """Grey pictures of one brightness each: round, then the number of the sample."""
    shade = (10 * round_ + torch.arange(n)).to(dtype).view(n, 1, 1, 1)
    record = {"x": shade.expand(n, channels, 4, 5).clone(), "y": torch.arange(n) % 3}
    return MemoryItem(round_, 0, round_, n, record)


def client_states(*clients: tuple[MemoryItem, ...]) -> dict[int, ClientState]:
    return {2 * number: ClientState(items=kept) for number, kept in enumerate(clients)}


@pytest.fixture
def figure(tmp_path, monkeypatch):
    """The figure that draw_samples makes."""
    made = []
    build = report._figure
    monkeypatch.setattr(
        report, "_figure", lambda *arguments: made.append(build(*arguments)) or made[-1]
    )

    def figure(*arguments, **others):
        draw_samples(arguments[0], tmp_path / "samples.png", *arguments[1:], **others)
        return made[-1]

    return figure


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_row_a_client_with_the_latest_data_sets_first(figure):
    kept = tuple(item(t) for t in (3, 1, 9, 4))
    drawn = figure(client_states(kept, (item(5, n=2),)), CLASSES, per_client=6)
    (axes,) = drawn.axes
    tiles = [
        (round(i.get_extent()[3], 2), round(i.get_extent()[0], 2), i.get_array()[0, 0] * 255)
        for i in axes.images
    ]
    first = [shade for top, _, shade in tiles if top < 1]
    assert np.allclose(first, [90, 91, 40, 41, 30, 31])  # two of each of the latest three
    assert np.allclose([shade for top, _, shade in tiles if top > 1], [50, 51])
    lefts = [left for top, left, _ in tiles if top < 1]
    assert lefts == sorted(lefts)
    words = texts(drawn)
    assert [w for w in words if w.startswith("client")] == ["client 0", "client 2"]
    assert [w for w in words if w.startswith("round")] == [f"round {t}" for t in (9, 4, 3, 5)]


def test_every_sample_has_the_name_of_its_class(figure):
    drawn = figure(client_states((item(1),)), CLASSES, per_client=9)
    assert texts(drawn)[-3:] == list(CLASSES)
    assert texts(figure(client_states((item(1),)), per_client=9))[-3:] == ["0", "1", "2"]


def test_colour_and_numbers_that_are_no_bytes(figure):
    (image, *_) = figure(client_states((item(1, channels=3),))).axes[0].images
    assert image.get_array().shape == (4, 5, 3)
    images = figure(client_states((item(1, dtype=torch.float32),)), per_client=18).axes[0].images
    shades = [float(image.get_array()[0, 0]) for image in images]
    assert np.allclose(shades, np.arange(6) / 5)  # from the least to the largest that occur


def test_more_clients_than_there_is_room_for_is_said(figure):
    many = client_states(*[(item(1),)] * (MOST_CLIENTS + 3))
    words = texts(figure(many))
    assert len([w for w in words if w.startswith("client")]) == MOST_CLIENTS
    assert f"the first {MOST_CLIENTS} of {MOST_CLIENTS + 3} clients" in words
    assert not any("first" in word for word in texts(figure(client_states((item(1),)))))


def test_clients_and_data_sets_without_samples_are_passed_over(figure):
    other = MemoryItem(8, 0, 8, 5, {"params": torch.zeros(3)})
    empty = MemoryItem(9, 0, 9, 5, {})
    drawn = figure(client_states((empty,), (item(1), other, empty), ()))
    assert [w for w in texts(drawn) if w.startswith(("client", "round"))] == ["client 2", "round 1"]


def test_arrays_serve_as_well_as_tensors():
    record = {name: tensor.numpy() for name, tensor in item(1).record.items()}
    (group,) = latest(ClientState(items=(MemoryItem(1, 0, 1, 6, record),)), 6)
    assert group.images.shape == (2, 1, 4, 5)


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")]
)
def test_the_ending_chooses_the_format(tmp_path, monkeypatch, ending, magic):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # its global state is not needed
    path = draw_samples(client_states((item(1),)), tmp_path / f"samples.{ending}", CLASSES)
    assert path.read_bytes().startswith(magic)
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_to_draw(tmp_path):
    for nothing in (
        {},
        client_states(()),
        client_states((MemoryItem(0, 0, 0, 3, {"g": torch.ones(2)}),)),
    ):
        with pytest.raises(SpecError, match="nothing to draw: no client keeps any samples"):
            draw_samples(nothing, tmp_path / "samples.png")


@pytest.mark.parametrize(
    ("name", "shape", "error", "words"),
    [
        ("a.gif", (1, 4, 4), SpecError, "use a file ending of .png, .svg, .pdf"),
        ("a.png", (5,), SpecError, r"samples of shape \(5,\): only images"),
        ("a.png", (128, 6), SpecError, "only images"),
        ("a.png", (2, 4, 4), SpecError, "only images"),
        ("no/a.png", (1, 4, 4), StorageError, "there is no folder .*no; make it"),
    ],
)
def test_what_cannot_be_drawn(tmp_path, name, shape, error, words):
    with pytest.raises(error, match=words):
        check_picture(tmp_path / name, shape)


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib: pip install 'chronofed\[plot\]'"):
        check_picture(tmp_path / "a.png", (1, 4, 4))


# --- the command line --------------------------------------------------------------------------------

SPEC = """
rounds = 2
[model]
kind = "linear"
[scenario]
kind = "subsets"
clients = 3
subsets = 5
[train]
steps = 1
[method.memory]
kind = "core-set"
size = 5
"""
TABLE = """
[data]
kind = "table"
path = "data.csv"
client = "who"
time = "when"
target = "y"
period = "10"
[scenario]
kind = "periods"
[method.memory]
kind = "core-set"
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "spec.toml").write_text(SPEC)

    def call(*arguments):
        code = main(list(arguments))
        return code, capsys.readouterr().err

    return call


def test_run_and_resume_draw_the_end_of_the_run(call, tmp_path):
    code, err = call("run", "spec.toml", "-o", "run", "--samples", "one.png", "-q")
    assert (code, err) == (0, "chronofed: samples: one.png\n")
    code, err = call("resume", "run", "--samples", "two.png", "-q")
    assert (code, err) == (
        0,
        "chronofed: samples: two.png\nchronofed: run is finished; nothing to do\n",
    )
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert call("run", "spec.toml", "-o", "other", "-q") == (0, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-s", "method.memory={kind='forget'}"], "with Forget clients keep no samples to draw"),
        (["-s", "method.memory={kind='taylor'}"], "with Taylor clients keep no samples to draw"),
        (["--samples", "one.gif"], "use a file ending of .png"),
    ],
)
def test_a_run_that_could_not_be_drawn_does_not_start(call, tmp_path, options, message):
    code, err = call("run", "spec.toml", "-o", "run", "--samples", "one.png", *options)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_table_has_no_pictures(call, tmp_path):
    rows = [f"{'ab'[k % 2]},{k},{0.1 * k},{k % 3 % 2}" for k in range(40)]
    (tmp_path / "data.csv").write_text("\n".join(["who,when,f,y", *rows]))
    (tmp_path / "table.toml").write_text(TABLE)
    code, err = call("run", "table.toml", "-o", "run", "--samples", "one.png")
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot draw samples of shape (1,): only images" in err
    assert not (tmp_path / "run").exists()


def test_a_finished_run_without_a_checkpoint_has_nothing_to_draw_from(call, tmp_path):
    assert call("run", "spec.toml", "-o", "run", "-q")[0] == 0
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.unlink()
    code, err = call("resume", "run", "--samples", "one.png", "-q")
    assert code == 4
    assert "run has no checkpoint left to take samples from" in err
