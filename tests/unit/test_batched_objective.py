"""Gradients of many clients' single samples at once, against one client after another."""

import pytest
import torch

from chronofed import Fisher, Hutchinson, Mlp, Samples, Taylor
from chronofed.core.stacking import stacked, works_stacked
from chronofed.core.types import Batch
from chronofed.engines.batched.kernel import BatchedMlp
from chronofed.engines.batched.layout import layout_of
from chronofed.engines.batched.objective import BatchedObjective
from chronofed.engines.batched.workspace import Workspace
from chronofed.methods.memories.curvature import SquaredGradient
from chronofed.methods.memories.expansion import chosen_layers
from chronofed.models.objective import CHUNK_SAMPLES, TorchObjective

CLIENTS, FEATURES, CLASSES = 3, 5, 4


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def objectives(hidden=(6, 3), dtype=torch.float64) -> tuple[TorchObjective, BatchedObjective]:
    single = TorchObjective(Mlp(hidden).build((FEATURES,), CLASSES).to(dtype))
    return single, BatchedObjective(BatchedMlp(layout_of(single), Workspace()), CLIENTS)


def models(single: TorchObjective, clients: int = CLIENTS) -> torch.Tensor:
    shape = clients, single.flat.size
    return torch.randn(shape, generator=generator(1), dtype=single.flat.read().dtype)


def batch(n: int, *, bytes_: bool = False) -> Batch:
    draw = generator(2)
    x = torch.randn(CLIENTS, n, FEATURES, generator=draw, dtype=torch.float64)
    if bytes_:
        x = torch.randint(256, x.shape, generator=draw, dtype=torch.uint8)
    y = torch.randint(CLASSES, (CLIENTS, n), generator=draw)
    return Batch(x, y, torch.randn(CLIENTS, n, generator=draw, dtype=torch.float64))


def one_by_one(name: str, single: TorchObjective, params, several: Batch, spans):
    rows = zip(params, several.x, several.y, several.weight, strict=True)
    return torch.stack([getattr(single, name)(w, Batch(x, y, a), spans) for w, x, y, a in rows])


@pytest.mark.parametrize(
    ("hidden", "chosen"),
    [
        *(((), chosen) for chosen in ("fc.*", "*", "*.weight")),
        *(((6, 3), chosen) for chosen in ("fc.*", "*", "*.weight", "features.fc1.bias")),
    ],
)
@pytest.mark.parametrize("bytes_", [True, False])
@pytest.mark.parametrize("n", [1, 7, CHUNK_SAMPLES + 3])
def test_sums_are_those_of_single_clients(n, bytes_, hidden, chosen):
    single, together = objectives(hidden)
    params, several = models(single), batch(n, bytes_=bytes_)
    spans = tuple(span for span, _ in chosen_layers({chosen: 1.0}, single.names))
    for name in ("loss_gradient", "squared_gradients"):
        got = getattr(together, name)(params, several, spans)
        want = one_by_one(name, single, params, several, spans)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_another_question_has_another_answer_and_belongs_to_who_asked():
    single, together = objectives()
    params, several, last = models(single), batch(4), (single.names["fc.bias"],)
    first = together.loss_gradient(params, several, last)
    first.zero_()
    for asked in (
        (params, several, last),
        (params + 1, several, last),
        (params, batch(5), last),
        (params, several, (single.names["fc.weight"],)),
    ):
        want = one_by_one("loss_gradient", single, *asked)
        torch.testing.assert_close(together.loss_gradient(*asked), want)


# --- what a memory makes of it


def several_samples(sizes) -> list[Samples]:
    draw = generator(3)
    return [
        Samples(
            torch.randn(n, FEATURES, generator=draw, dtype=torch.float64),
            torch.randint(CLASSES, (n,), generator=draw),
        )
        for n in sizes
    ]


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (9, 2, 5, 4)], ids=str)
@pytest.mark.parametrize("samples", [None, 4])
@pytest.mark.parametrize("layers", [{"fc.*": 1.0}, {"fc.bias": 0.5, "*": 1.0}], ids=str)
@pytest.mark.parametrize("curvature", [Fisher(), SquaredGradient()], ids=str)
def test_expansions_together_equal_expansions_alone(curvature, layers, samples, sizes):
    memory = Taylor(curvature, layers, samples=samples)
    single, together = objectives()
    params, data = models(single, len(sizes)), several_samples(sizes)
    ours, theirs = ([generator(10 + i) for i in range(len(sizes))] for _ in range(2))
    records = memory.observe_together(together, params, data, ours)
    assert works_stacked(memory.observe)
    for record, *mine in zip(records, params, data, theirs, strict=True):
        want = memory.observe(single, *mine)
        assert record.keys() == want.keys()
        for name, tensor in want.items():
            assert record[name].dtype == tensor.dtype
            torch.testing.assert_close(record[name], tensor, rtol=1e-10, atol=1e-12)
            assert record[name].untyped_storage().nbytes() == tensor.nbytes
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.get_state(), other.get_state())


class Halved(Fisher, tag=True):
    """A curvature of one's own, which says nothing of many clients."""

    def expand(self, loss, generator):
        gradient, diagonal = super().expand(loss, generator)
        return gradient, diagonal / 2


@pytest.mark.parametrize(
    "memory",
    [
        Taylor(Hutchinson(), samples=2),
        Taylor(Halved(), samples=2),
        Taylor(Fisher(), {"fc.*": 0.0}, samples=2),
    ],
    ids=str,
)
def test_where_it_cannot_be_done_together_nothing_is_drawn(memory):
    single, together = objectives()
    generators = [generator() for _ in range(2)]
    data = several_samples((5, 5))
    assert memory.observe_together(together, models(single, 2), data, generators) is None
    assert all(torch.equal(g.get_state(), generator().get_state()) for g in generators)


class Own(Taylor, tag=True):
    """Observes in its own way."""

    def observe(self, *arguments):
        return super().observe(*arguments)


class OwnTogether(Own, tag=True):
    """The same, for many clients."""

    @stacked
    def observe(self, *arguments):
        return super().observe(*arguments)


def test_an_override_must_say_again_that_it_works_for_many():
    assert works_stacked(Taylor().observe)
    assert not works_stacked(Own().observe)
    assert works_stacked(OwnTogether().observe)
