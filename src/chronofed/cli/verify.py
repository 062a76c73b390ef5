"""The command ``chronofed verify``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from chronofed.cli.options import add_data
from chronofed.cli.output import note

GROUP = "experiments"
HELP = "check a proof that a run has forgotten"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "file that chronofed forget --certify wrote"
    parser.add_argument("proof", type=Path, metavar="PROOF", help=text)
    text = "run directory (default: where it was when the proof was written)"
    parser.add_argument("--run", type=Path, metavar="RUN", help=text)
    add_data(parser)


def run(options: Namespace) -> int:
    """Check a proof: its digest, those of the run, and the model against one that is trained anew."""
    import msgspec

    from chronofed.core.errors import RunError
    from chronofed.runs import RunDirectory
    from chronofed.runs.json_files import read_json

    proof = read_json(options.proof)
    if proof is None:
        raise RunError(f"{options.proof}: no such file")
    from chronofed.runs.forgetting import Proof, verify

    try:
        msgspec.convert(proof, Proof)
    except msgspec.ValidationError as error:
        raise RunError(f"{options.proof} is not a proof of forgetting ({error})") from error
    wrong = verify(proof, RunDirectory.open(options.run or Path(proof["run"])), options.data)
    if wrong:
        raise RunError(f"{options.proof}: {'; '.join(wrong)}")
    note(f"{options.proof}: holds; the model is that of a run that never saw what was forgotten")
    return 0
