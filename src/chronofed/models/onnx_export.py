"""ONNX, which needs the optional packages onnx and onnxscript; onnxruntime checks the result."""

import copy
import io
import logging
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from chronofed.core.errors import MissingExtraError, SpecError

INPUT, OUTPUT = "x", "outputs"
TOLERANCE = 1e-4
"""Difference between onnxruntime and torch that is accepted, relative to the largest output or 1."""
ROUNDING = 10
"""Multiple of torch's own rounding error that is accepted: small groups of GroupNorm amplify it."""


def to_onnx(network: nn.Module, x: Tensor, others: Tensor) -> bytes:
    """Return a module as an ONNX graph with one input ``x`` and one output ``outputs``.

    Args:
        network: The module.
        x: Samples to trace it with.
        others: Another number of samples, to compare torch with onnxruntime, where that is installed.

    Raises:
        MissingExtraError: If onnx is not installed.
        SpecError: If the graph does not compute what the module does.
    """
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise MissingExtraError("onnx and onnxscript", "onnx", "ONNX")
    logger, batch = logging.getLogger("torch.onnx"), {0: torch.export.Dim("batch")}
    level = logger.level
    # Torch tells about packages that are not needed here.
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            program = torch.onnx.export(
                network,
                (x,),
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=(batch,),
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    if find_spec("onnxruntime") is not None:
        _check(content, network, others)
    return content


def rounding(network: nn.Module, x: Tensor) -> float:
    """Return the largest difference between a module in float32 and in float64; 0 if it has no other form."""
    try:
        with torch.no_grad():
            exact = copy.deepcopy(network).double()(x.double() if x.is_floating_point() else x)
            return float((network(x) - exact).abs().max())
    except (RuntimeError, TypeError):
        return 0.0


def _check(content: bytes, network: nn.Module, x: Tensor) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run([OUTPUT], {INPUT: x.numpy()})
    expected = network(x)
    error = float((torch.from_numpy(found) - expected).abs().max())
    allowed = TOLERANCE * max(1.0, float(expected.abs().max())) + ROUNDING * rounding(network, x)
    if not error <= allowed:
        raise SpecError(f"ONNX: the graph differs from the model by {error:g}; use another format")
