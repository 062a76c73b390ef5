"""What was deleted is in no file of the run, byte by byte."""

import msgspec
import numpy as np
import pytest

from chronofed.clients.deletion import Deletion
from chronofed.core.errors import SpecError
from chronofed.runs import runner
from chronofed.runs.built import build
from chronofed.runs.load_spec import load
from chronofed.runs.spec import Checkpoint
from tests.corpus.runs_helper import write_data

CLIENT = 1


@pytest.fixture
def experiment(workdir):
    """Everything that a client ever saw is kept; every round leaves a checkpoint."""
    experiment = load(write_data(workdir), ["method.memory.size=100", "evaluate.seen=0"])
    return msgspec.structs.replace(experiment, checkpoint=Checkpoint(every=1, keep=4))


def samples(built, chosen) -> set[bytes]:
    """The bytes of some training samples, as a memory keeps them."""
    return {row.numpy().tobytes() for row in built.task.data.train.x[chosen]}


def found(path, wanted: set[bytes]) -> dict[str, int]:
    """The number of these samples in every file below a folder that has any."""
    counts = {
        str(file.relative_to(path)): sum(sample in file.read_bytes() for sample in wanted)
        for file in path.rglob("*")
        if file.is_file()
    }
    return {name: count for name, count in counts.items() if count}


@pytest.mark.some(3)
@pytest.mark.parametrize("cache_mb", [None, 1e-6])
@pytest.mark.parametrize("when", [5, 3])
@pytest.mark.parametrize("what", ["client", "rows"])
def test_deleted_samples_are_in_no_file(experiment, workdir, what, when, cache_mb):
    own = np.flatnonzero(build(experiment).task.data.origin.train_client == CLIENT)
    rows = tuple(own[::2].tolist())
    deletion = Deletion(when, clients=(CLIENT,)) if what == "client" else Deletion(when, rows=rows)
    changed = msgspec.structs.replace(experiment, deletions=(deletion,), state_cache_mb=cache_mb)
    built = build(changed)
    gone = samples(built, own if what == "client" else own[::2])
    runner.run(experiment, workdir / "undeleted")
    assert found(workdir / "undeleted", gone)
    runner.run(changed, workdir / "run")
    assert found(workdir / "run", gone) == {}
    others = samples(built, np.flatnonzero(built.task.data.origin.train_client != CLIENT))
    assert found(workdir / "run", others)


def test_a_deletion_replaces_older_checkpoints_at_once(experiment, workdir):
    """However rarely checkpoints are due."""
    deletions = (Deletion(3, clients=(CLIENT,)),)
    for every, expected in ((2, [4, 6]), (5, [4, 5, 6])):
        settings = {"deletions": deletions, "checkpoint": Checkpoint(every=every, keep=3)}
        run = workdir / f"every-{every}"
        runner.run(msgspec.structs.replace(experiment, **settings), run)
        left = sorted(int(path.name[:8]) for path in (run / "checkpoints").iterdir())
        assert left == expected


@pytest.mark.parametrize("when", [6, 100])
def test_a_deletion_that_is_never_reached_is_refused(experiment, when):
    deletions = (Deletion(0, clients=(2,)), Deletion(when, clients=(CLIENT,)))
    changed = msgspec.structs.replace(experiment, deletions=deletions)
    message = rf"deletions\[1\].round: {when} is never reached, because the run has 6 rounds"
    with pytest.raises(SpecError, match=message):
        build(changed)
