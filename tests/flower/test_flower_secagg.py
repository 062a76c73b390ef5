"""Why there is no secure aggregation: what docs/howto/security.md says about the installed Flower.

If one of these fails, Flower has changed, and the page's decision should be made anew.
"""

import subprocess
import sys

from tests.helpers.trial import NEEDS_FLOWER

pytestmark = NEEDS_FLOWER


def says(program: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_interface_of_messages_has_no_protocol():
    text = says(
        "import flwr.clientapp.mod, flwr.serverapp.strategy as s;"
        "print(*flwr.clientapp.mod.__all__, *dir(s))"
    ).lower()
    assert "secagg" not in text
    assert "secure" not in text
    assert "fedavg" in text


def test_the_older_one_wants_strategies():
    """The workflow wants a context that holds a strategy and its clients; an app of messages has none."""
    program = """
from flwr.app import Context, RecordDict
from flwr.server.workflow import SecAggPlusWorkflow
work = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
try:
    work(None, Context(1, 1, {}, RecordDict(), {}))
except TypeError as error:
    print(error)
"""
    assert says(program) == "Expect a LegacyContext, but get Context."


def test_it_clips_and_rounds_every_number():
    """Beyond the range it is cut, else it moves by a step of 16 / 2^22: not the bits of a simulation."""
    program = """
import numpy as np
from flwr.common.secure_aggregation.quantization import dequantize, quantize
x = [np.array([100.0, 0.123456789])]
print(*dequantize(quantize(x, 8.0, 1 << 22), 8.0, 1 << 22)[0])
"""
    cut, moved = map(float, says(program).split())
    assert cut == 8.0
    assert 0 < abs(moved - 0.123456789) <= 16 / 2**22
