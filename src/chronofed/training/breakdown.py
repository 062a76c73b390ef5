"""The figures of an evaluation by class and by client, one line of ``breakdown.jsonl``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronofed.training.evaluation import EvaluationContext

DIGITS = 5


def breakdown(evaluation: "EvaluationContext") -> dict[str, Any]:
    """Tabulate an evaluation.

    Returns:
        ``round``, ``period`` (the name of the period evaluated on, if it is one), ``rows``, ``classes``
        (``[precision, recall, F1, rows]`` of each, 0 where undefined) and ``clients`` (``[client, rows,
        accuracy]`` of those with rows).
    """
    rows, outcome = evaluation.rows, evaluation.outcome
    line: dict[str, Any] = {"round": evaluation.snapshot.round}
    if rows.name is not None:
        line["period"] = rows.name
    line["rows"] = len(rows.samples)
    if outcome is None:
        return line
    line["classes"] = [
        [*(round(share, DIGITS) for share in shares), int(support)]
        for *shares, support in outcome.by_class.tolist()
    ]
    line["clients"] = [
        [int(client), int(count), round(accuracy, DIGITS)]
        for client, count, accuracy in outcome.by_client.tolist()
    ]
    return line
