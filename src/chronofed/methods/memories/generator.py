"""Generative replay by a network: one generator stands for all the past of a client."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from chronofed.core.config import Count, Positive
from chronofed.core.errors import SpecError
from chronofed.core.seeds import torch_generator
from chronofed.core.types import Objective, Record, Samples, Spans, Vector
from chronofed.methods.memories import gaussians
from chronofed.methods.memories.base import SEVERAL, Location, Memory, MemoryItem, Moment
from chronofed.methods.memories.replay import replay
from chronofed.methods.memories.selection import turns
from chronofed.methods.memories.vae import Vae
from chronofed.methods.surrogate import Pool, Surrogate
from chronofed.methods.weighting import RoundWeights

LATEST = "latest"
"""The entry of a generator that a data set as it is observed has not: the key of its latest data set."""
MOST_PAST = 1000
"""Most samples that the earlier generator draws for the training of the next one."""
MOST_FEATURES = 256
"""Most numbers in a sample with a full covariance: it has their square for every class."""


class Generator(Memory, tag="generator"):
    r"""Keeps one generator of all past data sets on the client and replays what it draws.

    After a round the next generator is fitted to the present samples and to samples that the earlier one
    draws, each with the weight of the samples that it stands for (:math:`n_t` of now, :math:`m` of before):

    .. math::
        \theta_t = \arg\min_\theta\; \frac{n_t}{n_t + m} \operatorname*{mean}_{(x, y)\,\text{now}}
            \ell_\theta(x \mid y)
            + \frac{m}{n_t + m} \operatorname*{mean}_{(x, y) \sim \theta_{t-1}} \ell_\theta(x \mid y)

    With ``vae``, :math:`\ell` is minus the ELBO of a conditional variational autoencoder
    (:class:`~chronofed.methods.memories.vae.Vae`), which goes on from :math:`\theta_{t-1}`; features are scaled
    by mean and deviation of all that was seen. With ``gaussian`` nothing is drawn to fit it: counts, means and
    covariances by class are those of the union of all data sets, up to rounding.

    The approximation of all past objectives together is the mean loss of ``size`` samples, drawn anew in every
    round, with classes in proportion to what was seen. For the round weights they are one data set, of the
    latest round. While a data set is present, the generator of the ones before it is replayed. A data set that
    comes back later counts again. Of a regression inputs are drawn, and the target for them: ``vae`` has a
    small network that predicts it, with the noise that is left. Bytes are rounded.

    Nothing travels. A client keeps two generators: ``vae`` has about ``2 * hidden * (features + classes)``
    numbers, ``gaussian`` two vectors of features a class, or a vector and a matrix. A ``vae`` takes ``steps``
    steps after every round, and as many again with round weights that probe. The batched engine trains with it;
    generators are fitted client by client.

    A sample cannot be taken out of a generator. A request to delete one removes every generator that was fitted
    to it, or to draws of one that was; what these knew of other data sets is lost, too.

    The publication has a GAN, which is out of proportion here; this stands in for it. It labels drawn inputs by
    the earlier model; here the label is given, and the input is drawn for it.

    Attributes:
        form: ``vae``: a network. ``gaussian``: one Gaussian a class, which is exact but knows one shape only.
        size: Samples to draw for a round.
        hidden: Units of the hidden layers of encoder and decoder; only for ``vae``.
        latent: Numbers in a latent; only for ``vae``.
        steps: Training steps of a generator a round, by Adam with mini-batches of 64; only for ``vae``.
        lr: Learning rate of these; only for ``vae``.
        covariance: ``diagonal``, or ``full`` for samples of at most 256 numbers; only for ``gaussian``. A
            regression needs ``full``.
    """

    location: ClassVar[Location] = "client"
    reference: ClassVar[str] = (
        "Shin et al. (2017), Continual Learning with Deep Generative Replay; "
        "Kingma and Welling (2014), Auto-Encoding Variational Bayes"
    )
    synthetic: ClassVar[bool] = True

    form: Literal["vae", "gaussian"] = "vae"
    size: Count = 100
    hidden: Count = 64
    latent: Count = 8
    steps: Count = 300
    lr: Positive = 0.005
    covariance: Literal["diagonal", "full"] = "diagonal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "vae" and self.covariance != "diagonal":
            raise ValueError("Generator.covariance: only form = 'gaussian' has a covariance")

    def check(self, objective: Objective, params: Vector, samples: Samples) -> None:
        """Check that a covariance is neither too large nor without the target."""
        if self.form != "gaussian":
            return
        features = _table(samples.x, samples.y).shape[1]
        if self.covariance == "full" and features > MOST_FEATURES:
            raise SpecError(
                f"method.memory.covariance: 'full' is for at most {MOST_FEATURES} numbers a sample, not "
                f"{features}; use 'diagonal' or form = 'vae'"
            )
        if self.covariance == "diagonal" and samples.y.is_floating_point():
            raise SpecError(
                "method.memory.covariance: with 'diagonal' the target of a regression does not depend on the "
                "input; use 'full' or form = 'vae'"
            )

    def observe(
        self, objective: Objective, params: Vector, samples: Samples, generator: torch.Generator
    ) -> Record:
        """Return all samples; :meth:`retain`, which knows the earlier generator, fits the next one to them."""
        numbers = samples.y.is_floating_point()
        classes = 1 if numbers else objective.logits(params, samples.x[:1]).shape[1]
        about = {
            "classes": torch.tensor([classes]),
            "seed": torch.randint(2**62, (1,), generator=generator),
        }
        rows = {} if samples.rows is None else {"sources": samples.rows}
        return {"x": samples.x, "y": samples.y, **about, **rows}

    def retain(
        self, kept: tuple[MemoryItem, ...], new: Sequence[MemoryItem], generator: torch.Generator
    ) -> tuple[MemoryItem, ...]:
        """Keep the generator of the data sets before the present one, and one of these with the present."""
        (present,) = new
        earlier = _before(kept, present.key)
        record, size = self._fitted(present, earlier[0].record if earlier else None), present.size
        for one in earlier:
            size += one.size
            if "sources" in record and "sources" in one.record:
                both = torch.cat([one.record["sources"], record["sources"]])
                record = {**record, "sources": torch.unique(both)}
        return (*earlier, replace(present, key=SEVERAL, size=size, record=record))

    def recalled(self, kept: tuple[MemoryItem, ...], moment: Moment) -> tuple[MemoryItem, ...]:
        """Return the samples that stand for all data sets before the present one."""
        return tuple(self._drawn(item, moment.round) for item in _before(kept, moment.key))

    def recall(
        self, kept: tuple[MemoryItem, ...], weights: RoundWeights, moment: Moment
    ) -> Surrogate:
        """Replay samples that the generator draws."""
        return replay(self.recalled(kept, moment), weights, moment)

    def approximate(
        self, objective: Objective, params: Vector, item: MemoryItem
    ) -> tuple[Spans, Vector]:
        """Compute the mean gradient of drawn samples; for a new data set, of a generator of it alone."""
        if LATEST not in item.record:
            item = replace(item, record=self._fitted(item, None))
        return super().approximate(objective, params, self._drawn(item, item.round))

    def _fitted(self, present: MemoryItem, earlier: Record | None) -> Record:
        """Return the generator of a data set and of all that an earlier generator stands for."""
        record = present.record
        x, y, classes = record["x"], record["y"], int(record["classes"])
        data, codes = _table(x, y), torch.zeros_like(y, dtype=torch.int64)
        if not y.is_floating_point():
            codes = y
        counted = self._counted(data, codes, classes, earlier)
        about = {
            # Shape and dtype of samples.
            "like_x": x[:0].clone(),
            "like_y": y[:0].clone(),
            LATEST: torch.tensor([present.key]),
            "seed": record["seed"],
        }
        sources = {"sources": record["sources"]} if "sources" in record else {}
        if self.form == "gaussian":
            return {**counted, **about, **sources}
        fitted = {**about, **counted}
        return {**fitted, "network": self._trained(fitted, data, codes, earlier), **sources}

    def _counted(self, data: Tensor, codes: Tensor, classes: int, earlier: Record | None) -> Record:
        """Return the moments of all that was seen: by class, or of a network those that scale features."""
        full = self.covariance == "full"
        if self.form == "vae":
            new = dict(gaussians.moments(data, torch.zeros_like(codes), 1, full=False))
            seen = codes.bincount(minlength=classes).to(data.dtype)
            if earlier is not None:
                new = dict(gaussians.merged(earlier, new))
                seen = earlier["seen"] + seen
            return {**new, "seen": seen}
        new = dict(gaussians.moments(data, codes, classes, full=full))
        return new if earlier is None else gaussians.merged(earlier, new)

    def _trained(
        self, fitted: Record, data: Tensor, codes: Tensor, earlier: Record | None
    ) -> Vector:
        """Train a network on the present, and on what the earlier one draws."""
        generator = torch_generator(int(fitted["seed"]), "fit")
        vae = self._vae(fitted)
        mean, deviation = _scale(fitted)
        pieces = [Samples(((data - mean) / deviation).float(), codes)]
        if earlier is None:
            return vae.fit(
                vae.init(generator), Pool(pieces, even=1.0), self.steps, self.lr, generator
            )
        before = float(earlier["seen"].sum())
        labels = _labels(earlier["seen"], min(int(before), MOST_PAST))
        past = (self._draws(earlier, labels, generator) - mean) / deviation
        pieces.append(Samples(past.float(), labels))
        shares = torch.ones(len(data) + len(labels), dtype=torch.float64)
        shares[len(data) :] = before / len(labels)
        pool = Pool(pieces, shares / (before + len(data)))
        return vae.fit(earlier["network"], pool, self.steps, self.lr, generator)

    def _drawn(self, item: MemoryItem, round_: int) -> MemoryItem:
        """Return an item with samples in place of the generator."""
        record = item.record
        codes = _labels(record.get("seen", record["counts"]), self.size)
        generator = torch_generator(int(record["seed"]), "draw", round_)
        made = self._draws(record, codes, generator)
        x, y = record["like_x"], record["like_y"]
        if y.is_floating_point():
            made, y = made[:, :-1], made[:, -1].to(y.dtype)
        else:
            y = codes.to(y.dtype)
        return replace(item, record={"x": _as_samples(made, x), "y": y})

    def _draws(self, record: Record, codes: Tensor, generator: torch.Generator) -> Tensor:
        if self.form == "gaussian":
            return gaussians.draw(record, codes, generator)
        mean, deviation = _scale(record)
        made = self._vae(record).draw(record["network"], codes, generator)
        return made.double() * deviation + mean

    def _vae(self, record: Record) -> Vae:
        features, targets = record["mean"].shape[1], int(record["like_y"].is_floating_point())
        return Vae(features, len(record["seen"]), self.hidden, self.latent, targets)


def _before(kept: Sequence[MemoryItem], key: int | None) -> tuple[MemoryItem, ...]:
    """Return the latest generator, if any, that was not fitted to the present data set as its latest."""
    return tuple(item for item in kept if int(item.record[LATEST]) != key)[-1:]


def _table(x: Tensor, y: Tensor) -> Tensor:
    """Return samples as rows of numbers, ``(n, k)``; a target that is a number is the last of them."""
    data = x.flatten(1).double()
    return torch.cat([data, y.double()[:, None]], 1) if y.is_floating_point() else data


def _labels(counts: Tensor, size: int) -> Tensor:
    """Return ``size`` classes in proportion to their counts."""
    enough = -(-size // int(counts.sum()))
    return turns(counts.long() * enough, size, proportional=True)


def _scale(record: Record) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of every feature; 1 if it is constant."""
    deviation = (record["scatter"][0] / record["counts"]).sqrt()
    return record["mean"][0], deviation.where(deviation > 0, torch.ones_like(deviation))


def _as_samples(made: Tensor, like: Tensor) -> Tensor:
    """Return rows of numbers in the shape and dtype of samples; whole numbers are rounded."""
    made = made.reshape(len(made), *like.shape[1:])
    if not like.dtype.is_floating_point:
        bounds = torch.iinfo(like.dtype)
        made = made.round().clamp(bounds.min, bounds.max)
    return made.to(like.dtype)
