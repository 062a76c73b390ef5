"""The command ``chronofed forget``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from chronofed.cli.options import add_data, add_json, add_quiet
from chronofed.cli.output import emit_json, note

if TYPE_CHECKING:
    from chronofed.runs.directory import RunDirectory
    from chronofed.runs.forgetting import Request

GROUP = "experiments"
HELP = "take clients or samples out of a finished run, with a proof"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    text = "number of a client to forget; may be given several times"
    parser.add_argument("--client", type=int, action="append", default=[], metavar="N", help=text)
    text = "number of a training sample to forget; may be given several times"
    parser.add_argument("--row", type=int, action="append", default=[], metavar="N", help=text)
    text = "write a proof, which chronofed verify checks"
    parser.add_argument("--certify", type=Path, metavar="FILE", help=text)
    text = "train anew without them, in a new run directory, instead of taking them out"
    parser.add_argument("--retrain", type=Path, metavar="NEW", help=text)
    for add in (add_data, add_quiet, add_json):
        add(parser)


def run(options: Namespace) -> int:
    """Take clients or samples out of a run, or train it anew without them."""
    from chronofed.core.errors import SpecError
    from chronofed.runs import RunDirectory

    if not options.client and not options.row:
        raise SpecError("forget: name what to forget: --client N, or --row N")
    if min(*options.client, *options.row, 0) < 0:
        raise SpecError("forget: clients and rows are numbered from 0")
    if options.retrain is not None and options.certify is not None:
        raise SpecError("--certify: a run that is trained anew is its own proof; leave it out")
    directory = RunDirectory.open(options.run)
    from chronofed.runs.forgetting import Request

    request = Request(tuple(set(options.client)), tuple(set(options.row)), options.data)
    if options.retrain is not None:
        return _retrain(directory, request, options)
    return _forget(directory, request, options)


def _forget(directory: "RunDirectory", request: "Request", options: Namespace) -> int:
    import json

    from chronofed.core.atomic import write_atomic
    from chronofed.runs.forgetting import forget

    proof = forget(directory, request)
    if options.certify is not None:
        write_atomic(options.certify, json.dumps(proof, indent=2).encode() + b"\n")
    if options.json:
        emit_json(proof)
    elif not options.quiet:
        what = [f"client {n}" for n in proof["clients"]] + [f"row {n}" for n in proof["rows"]]
        named = ", ".join(what[:5]) + (f" and {len(what) - 5} more" if len(what) > 5 else "")
        note(
            f"{directory.path}: {named} forgotten; the model differs by {proof['difference']:.1e} from one "
            "that never saw them. Model, checkpoint and specification were replaced; measurements of earlier "
            "rounds stay."
        )
    return 0


def _retrain(directory: "RunDirectory", request: "Request", options: Namespace) -> int:
    from chronofed.cli.progress import progress
    from chronofed.runs.built import build
    from chronofed.runs.forgetting import with_deletion
    from chronofed.runs.load_spec import load_run
    from chronofed.runs.runner import create, proceed

    built = with_deletion(build(load_run(directory, request.data), request.data), request)
    fresh = create(built, options.retrain)
    with progress(options.quiet or options.json) as bars:
        summary = proceed(fresh, built, on_round=bars.watch(options.retrain.name))
    if options.json:
        emit_json({"run": str(options.retrain), **summary})
    return 0
