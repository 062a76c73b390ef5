"""The settings of evaluations: when, on what, and with which measures."""

from typing import Literal

from chronofed.core.config import Config, Count, Natural
from chronofed.core.errors import SpecError
from chronofed.data.dataset import EvaluateOn
from chronofed.scenarios.base import Scenario
from chronofed.training.measure import Measure
from chronofed.training.measures import load_measures

Protocol = Literal["auto", "next", "holdout"]
WhichBaselines = Literal["auto", "all", "simple", "off"]


class Evaluate(Config):
    """When and on what the global model is evaluated.

    Attributes:
        protocol: ``next``: after the last round of a period on all rows of the period that comes next, before
            anybody trains on them. ``holdout``: on rows that are held out from training. ``auto``: ``next``
            for a table with a time column in the scenario ``periods``, otherwise ``holdout``.
        every: Rounds between evaluations; the last round is always evaluated. With the protocol ``next``,
            periods between evaluations; after the last period there is nothing to evaluate on.
        skip: With the protocol ``next``: so many of the first periods are not evaluated on, because settings
            were chosen by them.
        on: Rows to evaluate on: ``test``, or ``validation`` while you choose settings. In the names of measures
            ``test`` then means these rows, and the test rows are not used at all. With the protocol ``next``,
            ``validation`` trains and evaluates on the first half of the periods only, and later ones are not
            used at all.
        sample: Evaluate on so many of the test rows, the same all the time, and on all of them after the
            last round; 0 for all of them always. They are drawn by the seed alone, so methods are compared on
            the same rows. The number that an evaluation used is recorded as ``test_samples``. Accuracies by
            data set stay on these rows to the end.
        seen: Evaluate on at most so many of the training samples seen so far, drawn anew each time; 0 for
            none. The number used is recorded as ``seen_samples``.
        periods: Follow the accuracy by client and data set, from which forgetting and backward transfer are
            computed. Costs no pass over data, but a few bytes a pair in the record. ``auto`` does it for
            returning clients, and of more than 3000 pairs follows a random sample of 3000; ``on`` follows
            all. How many is recorded as ``followed_pairs`` and ``seen_pairs``.
        past: Measure client drift, time drift and information loss on so many of the latest data sets of
            every client (a simulation knows them); 0 for not at all. Price: for each of them one gradient of
            its data and one of what is kept of it.
        past_at: Evaluations at which ``past`` is measured: ``every`` one, or the ``last``.
        measures: More measures: names such as ``macro_f1`` (see the table of measures), or your own, each as
            ``package.module:NAME`` of a :class:`~chronofed.Measure`. By default a few with ``next``.
        baselines: What the result is compared with, for the protocol ``next``. ``simple``: the majority class
            and the last target of a client. ``all``: also models trained on the last period alone, by every
            client alone, and on all rows in one place. ``auto``: ``all`` if that is cheap, else ``simple``.
        classifier: The way to a class. ``outputs``: the largest output. ``nearest-mean``: iCaRL's, the class
            whose kept samples have the nearest mean features. It counts for all measures of the global
            model but its loss, and needs a memory that keeps samples on the clients, such as ``core-set``.

    Where clients are remote, only they can see their data: ``seen`` and ``auto`` find nothing to evaluate then,
    and what was asked for explicitly is refused.
    """

    protocol: Protocol = "auto"
    every: Count = 1
    skip: Natural = 0
    on: EvaluateOn = "test"
    sample: Natural = 0
    seen: Natural = 2000
    periods: Literal["auto", "on", "off"] = "auto"
    past: Natural = 0
    past_at: Literal["every", "last"] = "every"
    measures: tuple[str, ...] | None = None
    baselines: WhichBaselines = "auto"
    classifier: Literal["outputs", "nearest-mean"] = "outputs"

    def due(self, round_: int, last: int) -> bool:
        """Tell if the model is evaluated after this round."""
        return round_ % self.every == 0 or round_ == last

    @property
    def end_differs(self) -> bool:
        """True if the evaluation after the last round measures more than those before it."""
        return self.sample > 0 or (self.past > 0 and self.past_at == "last")

    def check_end(self, known: bool) -> None:
        """Refuse what needs a last round, unless it is known beforehand.

        Raises:
            SpecError: If it is not.
        """
        if self.end_differs and not known:
            name = "sample" if self.sample else "past_at = 'last'"
            raise SpecError(
                f"evaluate.{name} measures more after the last round, which a run that may stop early or "
                "goes on forever does not know: leave it out, or set rounds without stop"
            )

    def own_measures(self) -> tuple[Measure, ...]:
        """Find the measures beyond the usual ones, and import the user's own.

        Raises:
            SpecError: If one cannot be imported, or its key is taken.
        """
        return load_measures(self.measures or ())

    def check(self, scenario: Scenario) -> None:
        """Refuse measures that cannot be computed.

        Raises:
            SpecError: If the server would need data that it does not have, or a measure cannot be imported.
        """
        self.own_measures()
        if self.protocol == "holdout" and self.baselines in ("all", "simple"):
            msg = f"evaluate.baselines: {self.baselines!r} needs evaluate.protocol = 'next'; use 'off'"
            raise SpecError(msg)
        if self.protocol == "holdout" and self.skip:
            raise SpecError(f"evaluate.skip = {self.skip} needs evaluate.protocol = 'next'")
        if self.protocol == "next" and self.sample:
            msg = f"evaluate.sample = {self.sample} is for test rows; protocol 'next' uses all of a period"
            raise SpecError(f"{msg}: leave it out")
        asked = {
            "periods = 'on'": self.periods == "on",
            f"past = {self.past}": self.past > 0,
            f"classifier = {self.classifier!r}": self.classifier != "outputs",
        }
        for name in (name for name, wanted in asked.items() if wanted and scenario.remote):
            msg = f"evaluate.{name} needs the clients' data, which are elsewhere: leave it out"
            raise SpecError(msg)
