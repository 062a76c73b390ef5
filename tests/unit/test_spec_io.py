"""Every mistake in a specification gets one line with the place and the nearest valid key."""

import tomllib

import msgspec
import pytest

from chronofed import CoreSet, Experiment, FedOpt, FedProx, Forget, Method, Optimal
from chronofed.clients.deletion import Deletion
from chronofed.core import toml
from chronofed.core.config import Kind
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import alternatives, from_table, to_table
from chronofed.methods.memories import Memory
from chronofed.scenarios import FixedClients, Subsets


class Silent(Forget, tag="silent"):
    """A user's own memory."""

    loudness: int = 0


def parse(text: str) -> Experiment:
    return from_table(tomllib.loads(text), Experiment)


def test_reads_nested_settings():
    experiment = parse(
        """
        rounds = 7
        [method.backbone]
        kind = "fedprox"
        mu = 0.3
        [method.memory]
        kind = "core-set"
        size = 20
        [method.weights]
        kind = "optimal"
        time_drift_sq = 1
        information_loss_sq = 0.5
        [scenario]
        kind = "subsets"
        cohort = 2
        membership = { kind = "fixed-clients", clients = [0, 2, 3] }
        """
    )
    assert experiment.method == Method(FedProx(0.3), CoreSet(20), Optimal(1.0, 0.5))
    assert experiment.scenario == Subsets(cohort=2, membership=FixedClients((0, 2, 3)))
    assert experiment.rounds == 7


def test_reads_a_backbone_in_a_backbone():
    text = """
        [method.backbone]
        kind = "fedopt"
        optimizer = "yogi"
        server_lr = 0.02
        [method.backbone.backbone]
        kind = "fedprox"
        mu = 0.3
        """
    wrapped = FedOpt(FedProx(0.3), "yogi", server_lr=0.02)
    assert parse(text).method.backbone == wrapped
    again = toml.dumps(msgspec.to_builtins(parse(text)))
    assert parse(again).method.backbone == wrapped


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roundz = 3", r"^roundz: unknown key; did you mean 'rounds'\?$"),
        ("[train]\nlearning = 1", r"^train.learning: unknown key; known: lr, batch_size, epochs"),
        ("[train]\nlr = 'fast'", r"^train.lr: expected float, got str 'fast'$"),
        ("[train]\nlr = -1", r"^train.lr: expected float > 0.0, got int -1$"),
        ("[train]\nbatch_size = 1.5", r"^train.batch_size: expected int \| str, got float 1.5$"),
        (
            "[train]\nbatch_size = 'all'",
            r"^train.batch_size: unknown value 'all'; did you mean 'full'\?$",
        ),
        ("[train]\nsteps = 1.5", r"^train.steps: expected int \| null, got float 1.5$"),
        (
            "[train]\nepoch = 'unoin'",
            r"^train.epoch: unknown value 'unoin'; did you mean 'union'\?$",
        ),
        ("train = 3", r"^train: expected a table, got int 3$"),
        ("rounds = 0", r"^rounds: expected int >= 1, got int 0$"),
        (
            "[method.backbone]\nkind = 'fedporx'",
            r"^method.backbone.kind: unknown value 'fedporx'; did you mean 'fedprox'\?$",
        ),
        (
            "[method.backbone]\nmu = 1",
            r"^method.backbone.kind: missing; choose one of a-gem, clipped, ditto, fedavg, ",
        ),
        (
            "[method.backbone]\nkind = 'fedopt'\nbackbone = { kind = 'fedprox', my = 1 }",
            r"^method.backbone.backbone.my: unknown key; did you mean 'mu'\?$",
        ),
        (
            "[method.backbone]\nkind = 'fedopt'\nbackbone = { kind = 'fedopt' }",
            r"^method.backbone: FedOpt.backbone: a FedOpt in a FedOpt",
        ),
        (
            "[method.memory]\nkind = 'core-set'\nsise = 3",
            r"^method.memory.sise: unknown key; did you mean 'size'\?$",
        ),
        (
            "[method.weights]\nkind = 'optimal'\ntime_drift_sq = 1",
            r"^method.weights.information_loss_sq: missing \(a required key of Optimal\)$",
        ),
        (
            "[data]\nkind = 'imagse'",
            r"^data.kind: unknown value 'imagse'; did you mean 'images'\?$",
        ),
        (
            "[data]\nname = 'cifar10'",
            r"^data.kind: missing; choose one of images, source-rows, table$",
        ),
        (
            "[data]\nkind = 'images'\nname = 'cifar'",
            r"^data.name: unknown value 'cifar'; did you mean 'cifar10",
        ),
        (
            "[scenario]\nkind = 'subsets'\nmembership = {kind = 'fixed-clients', clients = ['a']}",
            r"^scenario.membership.clients\[0\]: expected int, got str$",
        ),
        ("[[deletions]]\nrow = 3", r"^deletions\[0\].row: unknown key; did you mean 'rows'\?$"),
        ("deletions = 3", r"^deletions: expected an array of tables, got int 3$"),
        ("[model]\nkind = 'mlp'\nhidden = 200", r"^model.hidden: expected array, got int 200$"),
    ],
)
def test_an_error_names_the_mistake_and_its_place(text, message):
    with pytest.raises(SpecError, match=message):
        parse(text)


def test_an_array_of_tables():
    experiment = parse("[[deletions]]\nround = 3\nrows = [1, 2]\n[[deletions]]\nclients = [0]")
    assert experiment.deletions == (Deletion(3, (1, 2)), Deletion(0, clients=(0,)))


def test_a_users_own_class_by_its_path():
    table = {"kind": f"{__name__}:Silent", "loudness": 3}
    assert from_table(table, Memory, "method.memory") == Silent(loudness=3)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no_such_module:X", r"m.kind: cannot import 'no_such_module:X': No module"),
        (f"{__name__}:Missing", r"m.kind: cannot import .*has no attribute 'Missing'"),
        (
            "chronofed.methods.backbones:FedAvg",
            r"m.kind: 'chronofed.methods.backbones:FedAvg' is not a subclass of .*Memory",
        ),
        ("json:dumps", r"m.kind: 'json:dumps' is not a subclass"),
    ],
)
def test_a_path_that_does_not_serve(kind, message):
    with pytest.raises(SpecError, match=message):
        from_table({"kind": kind}, Memory, "m")


class Louder(Forget):
    """A user's own memory without a tag: it does not take its parent's name."""


def test_a_users_own_class_is_written_by_its_path():
    for memory in (Silent(3), Louder()):
        table = to_table(Method(memory=memory))
        assert table["memory"]["kind"] == f"{__name__}:{type(memory).__name__}"
        assert from_table(table, Method).memory == memory
    assert alternatives(Memory)["forget"] is Forget
    assert to_table(Method(FedProx(0.3)))["backbone"] == {
        "kind": "fedprox",
        "mu": 0.3,
        "server_lr": 1.0,
    }


def test_alternatives_are_found_at_any_depth():
    class Root(Kind):
        pass

    class Branch(Root):
        pass

    class Leaf(Branch, tag="leaf"):
        pass

    class Twig(Root, tag="twig"):
        pass

    assert alternatives(Root) == {"leaf": Leaf, "twig": Twig}
