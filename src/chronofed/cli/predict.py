"""The command ``chronofed predict``."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_json, add_trust_code
from chronofed.cli.output import emit_json, note
from chronofed.core.errors import SpecError

if TYPE_CHECKING:
    from chronofed.models.prediction import Prediction

GROUP = "results"
HELP = "predict the rows of a table with the model of a run"
FORMATS = ("csv", "jsonl", "parquet")
STANDARD_OUTPUT = Path("-")
NAMES = {
    "accuracy": "accuracy",
    "log_loss": "log loss",
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R2",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "run directory, or the folder of a model"
    parser.add_argument("run", type=Path, metavar="RUN", help=text)
    text = (
        "rows to predict: CSV, Parquet, npz or a database, with the columns of the training table"
    )
    parser.add_argument("table", type=Path, metavar="TABLE", help=text)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=STANDARD_OUTPUT,
        metavar="FILE",
        help="file of predictions (default -: standard output)",
    )
    text = "format of the predictions (default: by the extension of FILE, or csv)"
    parser.add_argument("--format", choices=FORMATS, help=text)
    text = "predict a client's rows with its personal model, where it has one"
    parser.add_argument("--personal", action="store_true", help=text)
    text = "for a database: one SELECT that returns the rows"
    parser.add_argument("--query", default="", metavar="SQL", help=text)
    text = "copy a column of the table to the predictions; repeat for more"
    parser.add_argument("--keep", action="append", default=[], metavar="COLUMN", help=text)
    add_trust_code(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    """Predict every row of a table, and measure the predictions if it has the target."""
    kind = _format(options)
    from chronofed.core.atomic import write_parts
    from chronofed.models.prediction import Prediction
    from chronofed.models.prediction_files import ENCODERS
    from chronofed.models.trained import load_model

    model = load_model(options.run, trust_code=options.trust_code)
    columns = model.read(options.table, options.query)
    prediction = Prediction(model, columns, options.personal, options.keep)
    content = ENCODERS[kind](prediction)
    if options.output == STANDARD_OUTPUT:
        for part in content:
            sys.stdout.write(part.decode())
    else:
        write_parts(options.output, content)
    _tell(prediction, options)
    return 0


def _format(options: Namespace) -> str:
    """Return the format of the output.

    Raises:
        SpecError: If nothing tells it, or if it cannot go to standard output.
    """
    to_terminal = options.output == STANDARD_OUTPUT
    found = options.format or ("csv" if to_terminal else options.output.suffix.lower()[1:])
    if found not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise SpecError(f"-o {options.output}: unknown extension; use {known}, or --format")
    if to_terminal and (found == "parquet" or options.json):
        what = "--format parquet" if found == "parquet" else "--json"
        raise SpecError(f"{what}: needs a file for the predictions; give one with -o FILE")
    return str(found)


def _tell(prediction: "Prediction", options: Namespace) -> None:
    """Report how many rows were predicted, and how well."""
    measures = prediction.measures.result()
    about = {
        "rows": prediction.rows,
        "empty_rows": prediction.empty_rows,
        "personal_rows": prediction.personal_rows,
    }
    if options.json:
        emit_json({"output": str(options.output), **about, "measures": measures})
        return
    done, empty = prediction.rows - prediction.empty_rows, prediction.empty_rows
    note(f"{done:,} rows predicted{_personal(prediction, options)}")
    if empty:
        note(f"{empty:,} rows left empty: no row of their client so far before (data.horizon)")
    if measures:
        known = [f"{NAMES[key]} {value:.4g}" for key, value in measures.items() if key in NAMES]
        unknown = prediction.measures.unknown
        more = f"; {unknown:,} of them have a class that the model does not know" * bool(unknown)
        note(f"on {measures['rows']:,} rows with a target: {', '.join(known)}{more}")


def _personal(prediction: "Prediction", options: Namespace) -> str:
    rows = f"{prediction.personal_rows:,} of them by the personal model of their client"
    return f", {rows}" if options.personal else ""
