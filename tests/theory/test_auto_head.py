"""What ``method = "auto"`` tests, chooses and says."""

import pytest
import torch
from torch.nn import functional

from chronofed import (
    Adaptive,
    Auto,
    Averaged,
    CoreSet,
    Experiment,
    FedProx,
    Forget,
    Gaussian,
    Merged,
    Method,
    Private,
    Stateless,
    Train,
)
from chronofed.core.errors import SpecError
from chronofed.core.spec_io import from_table, to_table
from chronofed.methods.backbones.base import SERVED
from chronofed.methods.heads.base import ASKED, BODY, JUDGED, SOLVED
from tests.theory.test_heads import last_of, task

TRAINS = Train(lr=0.3, steps=3, batch_size=8)


def test_clients_test_the_models_that_could_be_served():
    """On their own data, in double precision for the head."""
    learned, head = task("double_mlp"), Auto(every=1)
    method = Method(Averaged(), head=head)
    server = last_of(method, learned, 3, TRAINS).server
    sent = method.composed.broadcast({n: t for n, t in server.items() if n != SERVED})
    assert set(sent) == {"params", BODY, SOLVED, ASKED}
    objective, samples = learned.objective(), learned.data.train
    found = head.judge(objective, sent, objective.buffers, samples)
    for params, got in zip((server["params"], server["averaged"]), found[:2], strict=True):
        right = objective.logits(params, samples.x).argmax(1) == samples.y
        assert float(got) == pytest.approx(float(right.double().mean()))
    weight, bias = head.solution(server)
    features = objective.features(server["averaged"], samples.x).double()
    right = (functional.linear(features, weight, bias).argmax(1) == samples.y).double()
    assert float(found[2]) == pytest.approx(float(right.mean()))


def test_of_a_regression_it_is_the_squared_error():
    learned = task(regression=True)
    head = Auto(every=1)
    server = last_of(Method(Averaged(), head=head), learned, 3, TRAINS).server
    sent = Method(Averaged(), head=head).composed.broadcast(server)
    objective, samples = learned.objective(), learned.data.train
    found = head.judge(objective, sent, objective.buffers, samples)
    off = objective.logits(server["params"], samples.x)[:, 0] - samples.y
    assert float(found[0]) == pytest.approx(-float(off.square().mean()))
    # The target is linear, so ridge is right at once.
    assert found[2] > found[0]
    assert head.report(server)["auto_choice"] == 2.0


def test_evidence_fades_and_the_best_is_served():
    head, state = Auto(), {JUDGED: torch.zeros(5, dtype=torch.float64)}
    rounds = [torch.tensor(r, dtype=torch.float64) for r in ([0.9, 0.5, 0.1], [0.2, 0.5, 0.4])]
    for found in rounds:
        state = head.judged(state, found)
    want = 0.9 * rounds[0] + rounds[1]
    torch.testing.assert_close(state[JUDGED][:3], want)
    assert state[JUDGED][3:].tolist() == [1.9, 2.0]
    # Too few rounds: the mean of models.
    assert head.choice(state) == 1
    assert "until there are 3 rounds" in str(head.why(state)["why"])
    assert head.choice(head.judged(state, rounds[0])) == 0
    later = state
    for _ in range(5):
        later = head.judged(later, torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    assert head.choice(later) == 2
    why = head.why(later)
    assert why["served"] == "the head"
    assert "the mean of models 0.2645" in str(why["why"])


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_what_is_chosen_is_what_is_evaluated(choice):
    learned = task("double_mlp")
    method = Method(Averaged(), head=Auto())
    last = last_of(method, learned, 2, TRAINS)
    scores = torch.zeros(5, dtype=torch.float64)
    scores[choice], scores[3:] = 1.0, 3.0
    bare = {name: t for name, t in last.server.items() if name != "served"}
    with_mean = {**bare, "served": bare["averaged"], JUDGED: scores}
    served = Auto().serve(with_mean).get("served", bare["params"])
    head = Gaussian().serve({**with_mean})["served"]
    want = (bare["params"], bare["averaged"], head)[choice]
    assert torch.equal(served, want)


def test_the_word_auto(data, scenario):
    auto = from_table("auto", Method, "method")
    assert auto == Method(head=Auto())
    assert from_table({"method": "auto"}, Experiment).method == auto
    assert from_table(to_table(auto), Method) == auto
    with pytest.raises(SpecError, match="expected a table, got str 'atuo'"):
        from_table("atuo", Method, "method")
    fitted = auto.fitted(scenario)
    assert fitted == Method(Averaged(), CoreSet(), Adaptive(), head=Auto())
    # Once fitted it stays.
    assert fitted.fitted(scenario) == fitted
    gone = Stateless(clients=3, subsets=6).on(data, seed=0)
    assert auto.fitted(gone) == Method(Averaged(), Forget(), Merged(), head=Auto())
    assert not auto.fitted(gone).stateful
    own = Method(FedProx(), head=Auto())
    assert own.fitted(scenario) == own


def test_a_run_says_what_was_chosen_and_why(cli, workdir):
    (workdir / "spec.toml").write_text(
        'rounds = 4\nmethod = "auto"\n[model]\nkind = "mlp"\nhidden = [8]\n[train]\nsteps = 2\n'
        "[evaluate]\nevery = 2\nseen = 0\n"
    )
    assert cli("run", "spec.toml", "-o", "R", "--quiet")[0] == 0
    text = (workdir / "R/choices.jsonl").read_text()
    assert text.count("\n") == 2
    assert '"memory": "core-set", "weights": "adaptive", "because": "clients come back"' in text
    assert 'kind = "auto"' in (workdir / "R/spec.toml").read_text()


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match=r"^head: Auto has clients report on models, which Private"
    ):
        Method(Private(), average="clients", head=Auto(bound=1.0))
    with pytest.raises(
        ValueError, match=r"^Auto\.body: it compares heads on the model that is served"
    ):
        Auto(body="trained")
