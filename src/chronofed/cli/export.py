"""The command ``chronofed export``."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from chronofed.cli.options import add_json, add_trust_code
from chronofed.cli.output import emit_json, note
from chronofed.core.errors import SpecError

GROUP = "results"
HELP = "write the model of a run for programs without chronofed"
ENDINGS = {
    "safetensors": ".safetensors",
    "pt2": ".pt2",
    "torchscript": ".pt",
    "onnx": ".onnx",
}
"""Usual endings of the forms."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    text = "run directory, or the folder of a model"
    parser.add_argument("run", type=Path, metavar="RUN", help=text)
    parser.add_argument(
        "--to",
        choices=tuple(ENDINGS),
        help="safetensors (weights and a Python file that loads them), pt2 (torch.export), torchscript, or "
        "onnx (default: by the ending of FILE)",
    )
    text = "the file (default: the model's folder name with the usual ending)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    text = "export the personal model of a client"
    parser.add_argument("--personal", metavar="CLIENT", help=text)
    add_trust_code(parser)
    add_json(parser)


def run(options: Namespace) -> int:
    """Write the model in another form, with its description beside it."""
    form, path = _form(options)
    from chronofed.models.exporting import export
    from chronofed.models.trained import load_model

    model = load_model(options.run, trust_code=options.trust_code)
    if options.personal is not None:
        model = model.personal(options.personal)
    files = export(model, path, form)
    if options.json:
        emit_json({"form": form, "files": [str(file) for file in files]})
    else:
        note(f"{form}: {', '.join(map(str, files))}")
    return 0


def _form(options: Namespace) -> tuple[str, Path]:
    """Return the form and the file.

    Raises:
        SpecError: If neither tells the form.
    """
    by_ending = {ending: form for form, ending in ENDINGS.items()}
    path = options.output
    if path is None:
        form = options.to or "safetensors"
        return form, Path(f"{options.run.resolve().name}{ENDINGS[form]}")
    form = options.to or by_ending.get(path.suffix.lower())
    if form is None:
        raise SpecError(f"-o {path}: unknown ending; use {', '.join(by_ending)}, or --to")
    return form, path
