"""The model card: a page about a trained model for people who did not train it."""

from collections.abc import Iterator, Mapping
from typing import Any

from chronofed.core.config import kind_of
from chronofed.data.dataset import Dataset
from chronofed.data.table import Table
from chronofed.models.description import ModelDescription
from chronofed.runs.built import BuiltRun
from chronofed.training.measure import UNITS, MeasureDisplay, decimals, placed
from chronofed.training.measures import MEASURES

NOT_STATED = "not stated"
MOST_NAMES = 10
"""Names that are listed in full."""


def model_card(built: BuiltRun, about: ModelDescription, summary: Mapping[str, Any]) -> str:
    """Write the card in Markdown."""
    card = built.experiment.card
    sections = {
        "Use": _use(about),
        "Data": _data(built, about),
        "Method": _method(built, about),
        "Measures": _measures(built, summary),
        "Intended use": card.intended_use or NOT_STATED,
        "Limits": "\n".join(_limits(built, about)),
        "Licence": card.licence or NOT_STATED,
    }
    parts = [f"# {_text(built.experiment.name)}", *(f"## {k}\n\n{v}" for k, v in sections.items())]
    return "\n\n".join(parts) + "\n"


def _use(about: ModelDescription) -> str:
    out = "probabilities" if about.classes else "numbers"
    lines = ["import chronofed", "", 'model = chronofed.load_model("model")']
    lines.append(f'{out} = model.predict("new.{"npz" if about.preparation is None else "csv"}")')
    return "```python\n" + "\n".join(lines) + "\n```"


def _data(built: BuiltRun, about: ModelDescription) -> str:
    data = built.task.data
    rows = {
        "data": _text(data.name),
        "task": about.task,
        "target": _text(about.columns.target) or NOT_STATED,
        "classes": _listed(about.classes),
        "features": _listed(about.features) or f"samples of shape {list(about.shape)}",
        "clients": _listed(about.clients) or str(built.scenario.clients),
        "periods": _periods(data),
        "trained up to": _text(about.last_period),
        "rows": _rows(built),
    }
    return _table({name: value for name, value in rows.items() if value})


def _rows(built: BuiltRun) -> str:
    data, on = built.task.data, built.experiment.evaluate.on
    train = "on the clients" if built.scenario.remote else f"{len(data.train):,} to train on"
    if built.upcoming is not None:
        return f"{train}, of which each period is evaluated on before it is trained on"
    return f"{train}, {len(data.test):,} to evaluate on ({on})"


def _periods(data: Dataset) -> str:
    if data.origin is None:
        return ""
    names = data.origin.periods
    return f"{len(names)}: {_text(names[0])} to {_text(names[-1])}"


def _method(built: BuiltRun, about: ModelDescription) -> str:
    experiment = built.experiment
    method = experiment.method
    rows = {
        "model": kind_of(experiment.model),
        "backbone": kind_of(method.backbone),
        "memory": kind_of(method.memory),
        "round weights": kind_of(method.weights),
        **({} if method.loss is None else {"local loss": kind_of(method.loss)}),
        **({} if method.head is None else {"head": kind_of(method.head)}),
        "rounds": f"{about.rounds:,}",
        "seed": str(about.seed),
        "personal models": str(len(about.personal)),
        "chronofed": about.version,
        "specification": about.spec,
    }
    return _table(rows)


def _measures(built: BuiltRun, summary: Mapping[str, Any]) -> str:
    """List the measures of the run, and say what they were measured on."""
    own = built.experiment.evaluate.own_measures()
    last = {
        m.summary_key("last"): m for m in placed("summary", (*MEASURES, *own)) if not m.cumulative
    }
    shown = {_text(m.title): _number(m, summary[key]) for key, m in last.items() if key in summary}
    return f"{_protocol(built)}\n\n{_table(shown)}"


def _protocol(built: BuiltRun) -> str:
    settings, on = built.experiment.data, built.experiment.evaluate.on
    if built.upcoming is not None:
        return "Measured on the rows of every next period, before the model was trained on them."
    if not isinstance(settings, Table):
        return f"Measured on the {on} samples, which no client trains on."
    held = (
        "blocks of rows that follow each other" if settings.holdout == "blocks" else "random rows"
    )
    return (
        f"Measured on the {on} rows: {held}, held out of every client and period, later ones too. "
        "So the figures do not say how well the model predicts a period that it has not seen."
    )


def _number(measure: MeasureDisplay, value: float) -> str:
    digits = UNITS[measure.unit].digits if measure.digits is None else measure.digits
    number = measure.scale * value
    return f"{number:,.{decimals(number, digits)}f} {measure.symbol}".strip()


def _limits(built: BuiltRun, about: ModelDescription) -> Iterator[str]:
    if built.experiment.card.limits:
        yield f"- {built.experiment.card.limits}"
    if about.last_period:
        yield f"- Nothing after {_text(about.last_period)} was seen. Data that drift make it worse with time."
    if about.preparation is not None and about.preparation.periods:
        first, last = about.preparation.periods[0], about.preparation.periods[-1]
        yield (
            f"- Scaling and categories are those of {_text(first)} to {_text(last)}, and stay so. Categories "
            "that came later count as 'other'."
        )
    if built.experiment.deletions:
        yield "- Data were deleted while it was trained. What it had learned from them was not undone."
    if built.scenario.remote:
        yield "- Personal models, if there are any, stay with the clients."
    yield "- It has not been checked for fairness, for attacks, or for what it gives away about rows."


def _listed(names: tuple[str, ...]) -> str:
    """Join names; of many, the first ones."""
    if not names:
        return ""
    some = ", ".join(map(_text, names[:MOST_NAMES]))
    return some if len(names) <= MOST_NAMES else f"{len(names)}: {some}, ..."


def _text(text: str) -> str:
    """Show a name of the user on one line, without marks that Markdown or HTML would read."""
    line = "".join(c if c.isprintable() else "?" for c in text)
    return "".join(f"\\{c}" if c in r"\`*_[]<>|#" else c for c in line)


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())])
