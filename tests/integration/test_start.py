"""Starting from a trained model: its numbers, its preparation, and what is refused."""

import json
import shutil

import pytest
import torch

from chronofed.core import safetensors_io
from chronofed.core.errors import DataError, SpecError
from chronofed.data.preparation import Preparation
from chronofed.runs.built import build
from chronofed.runs.checkpoint import load_latest
from chronofed.runs.load_spec import load
from chronofed.runs.start import load_start
from tests.corpus.runs_helper import SPEC, call, make_run, results, rows, write_data

HEAD = "client,time,u,v,kind\n"


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A finished run of two rounds, and its folder."""
    folder = tmp_path_factory.mktemp("old")
    return make_run(write_data(folder), folder / "run", rounds=2)


@pytest.fixture
def spec(tmp_path, old):
    """A later table beside a copy of the run."""
    copy_without_model(old, tmp_path / "old")
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.csv").write_text(HEAD + rows(120, 80))
    text = f'start = "old"\n{SPEC}'.replace("rounds = 6", "rounds = 2")
    (tmp_path / "spec.toml").write_text(text)
    return tmp_path / "spec.toml"


def copy_without_model(run, path):
    """Copy a run as it is before it has left a model: only its checkpoints have one."""
    shutil.copytree(run.path, path)
    shutil.rmtree(path / "model")


def params(run):
    return load_latest(run.checkpoints)[0].params


def named(old, path, change=lambda tensors: tensors):
    """Write the old model with the names of its layers."""
    snapshot = load_latest(old.checkpoints)[0]
    task = build(load(old.spec_path)).task
    flat = task.objective().flat
    shapes = dict(flat.module.named_parameters())
    tensors = {n: snapshot.params[s].view(shapes[n].shape) for n, s in flat.spans.items()}
    content = b"".join(map(bytes, safetensors_io.save(change(tensors), {})))
    path.write_bytes(content)


def test_training_goes_on_from_the_old_parameters(spec, old, tmp_path):
    built = build(load(spec))
    first = built.first_snapshot()
    assert torch.equal(first.params, params(old))
    assert first.round == 0
    assert not first.client_states
    # And not from random ones.
    run = make_run(spec, tmp_path / "run")
    spec.write_text(spec.read_text().replace('start = "old"\n', ""))
    assert not torch.equal(params(run), params(make_run(spec, tmp_path / "random")))


def test_features_mean_what_they_meant(spec, old, tmp_path):
    """The old mean and deviation are used, though those of the new rows differ."""
    text = (tmp_path / "rows.csv").read_text().splitlines()
    cells = [line.split(",") for line in text[1:]]
    large = [",".join([c, t, str(float(u) + 100), v, k]) for c, t, u, v, k in cells]
    (tmp_path / "rows.csv").write_text("\n".join([text[0], *large]) + "\n")
    data = build(load(spec)).task.data
    known = Preparation.from_json((old.path / "preparation.json").read_bytes())
    assert data.preparation == known
    feature = known.features[0]
    expected = (float(large[0].split(",")[2]) - feature.mean) / feature.deviation
    assert data.classes == known.classes
    assert float(torch.cat([data.train.x, data.test.x])[:, 0].sub(expected).abs().min()) < 1e-4
    assert float(data.train.x[:, 0].min()) > 10


@pytest.mark.slow
def test_a_file_with_named_layers_is_the_same_as_the_run(spec, old, tmp_path):
    run = make_run(spec, tmp_path / "run")
    shutil.copytree(old.path / "model", tmp_path / "old" / "model")
    for number, start in enumerate(("old", "old/model", "old/model/model.safetensors")):
        again = make_run(spec, tmp_path / f"again{number}", start=start)
        assert results(again.path) == results(run.path)


def without(tensors):
    return dict(list(tensors.items())[1:])


def wider(tensors):
    name = next(iter(tensors))
    return tensors | {name: torch.zeros(9, 9)}


def more(tensors):
    return tensors | {"extra.weight": torch.zeros(1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without, r"model\.safetensors has no layer '.*weight', which this model has"),
        (
            wider,
            r"layer '.*weight' has shape \(8, 2\) in this model, and \(9, 9\) in .*model\.safetensors",
        ),
        (more, r"has a layer 'extra\.weight', which this model has not"),
    ],
)
def test_the_first_layer_that_differs_is_named(change, message, spec, old, tmp_path):
    named(old, tmp_path / "model.safetensors", change)
    with pytest.raises(SpecError, match=message):
        build(load(spec, ["start=model.safetensors"]))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (["model.hidden=[4]"], SpecError, r"start: model\.hidden is \[4\] here, and \[8\] in "),
        (
            ["data.features=['u']"],
            DataError,
            "feature 'v' is missing; the model was trained on u, v",
        ),
        (["data.classes=['a','b','c','d','e','f']"], DataError, "data.classes"),
        (["start=nowhere"], SpecError, "start: no file nowhere in "),
        (["start=rows.csv"], SpecError, "start: .*rows.csv is not a safetensors file"),
        (["start=empty"], SpecError, "start: .* holds no model"),
    ],
)
def test_what_does_not_fit_is_refused(settings, error, message, spec):
    with pytest.raises(error, match=message):
        build(load(spec, settings))


def test_a_run_without_a_checkpoint_has_no_model(spec, tmp_path):
    shutil.rmtree(tmp_path / "old" / "checkpoints")
    with pytest.raises(SpecError, match=r"start: .*old has no checkpoint yet"):
        build(load(spec))


@pytest.mark.slow
def test_buffers_are_taken_over(tmp_path):
    """BatchNorm's statistics are buffers."""
    text = 'rounds = 1\n[model]\nkind = "resnet18"\nwidth = 2\n[train]\nsteps = 1\n'
    (tmp_path / "spec.toml").write_text(text)
    task = build(load(tmp_path / "spec.toml")).task
    state = {
        n: torch.rand_like(t, dtype=torch.float32)
        for n, t in task.objective().flat.module.state_dict().items()
    }
    (tmp_path / "model.safetensors").write_bytes(
        b"".join(map(bytes, safetensors_io.save(state, {})))
    )
    first = build(load(tmp_path / "spec.toml", ["start=model.safetensors"])).first_snapshot()
    names = [name for name, _ in task.objective().flat.module.named_buffers()]
    assert torch.equal(first.buffers, torch.cat([state[n].reshape(-1) for n in names]))


def test_another_model_to_start_from_is_another_run(spec, old, tmp_path):
    run = make_run(spec, tmp_path / "run", stop_after=1)
    straight = make_run(spec, tmp_path / "straight")
    before = load_start(str(tmp_path / "old")).digest
    make_run(old.spec_path, tmp_path / "other", seed=5)
    shutil.rmtree(tmp_path / "old" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", tmp_path / "old" / "checkpoints")
    assert load_start(str(tmp_path / "old")).digest != before
    code, _, err = call("resume", run.path, "-q")
    assert code == 4
    assert "changed since the run began: the model it starts from" in err
    shutil.rmtree(tmp_path / "old")
    copy_without_model(old, tmp_path / "old")
    assert call("resume", run.path, "-q")[0] == 0
    assert results(run.path) == results(straight.path)
    assert json.loads((run.path / "digests.json").read_text())["identity"]["start"] == before


def test_the_command_says_what_is_not_taken_over(spec, tmp_path):
    code, _, err = call("run", spec, "-o", tmp_path / "run")
    assert code == 0
    assert "starts from the model of " in err
    assert "what its clients kept is not taken over" in err
