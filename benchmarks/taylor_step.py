"""What the Taylor memory costs, in units of one FedAvg step on the same model.

    python benchmarks/taylor_step.py

One torch thread, batches of 32 random 32x32x3 images, ResNet18 of width 64 and 16, the default layers, 40
remembered records. Everything is interleaved in one run, and every number is the median of the ratios to the
FedAvg step beside it. Exits with 1 if a step with the memory takes more than 1.10 of one without.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch

from chronofed import Fisher, Hutchinson, ResNet18, SquaredGradient, Taylor, Train, Uniform
from chronofed.core.flat import take
from chronofed.core.types import Samples, Vector
from chronofed.methods.local import ClientLocal
from chronofed.methods.memories import MemoryItem, Moment
from chronofed.methods.surrogate import Surrogate
from chronofed.models.objective import TorchObjective

LIMIT = 1.10
RECORDS = 40
DISTINCT = 8  # records that really lie in memory, each five times: more than any cache holds
BATCH = 32


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--width", type=int, nargs="*", default=[64, 16])
    options.add_argument("--repeats", type=int, default=7)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread")
    worst = max([measure(width, chosen.repeats) for width in chosen.width])
    print(f"largest ratio of a step: {worst:.3f} (limit {LIMIT})")
    return int(worst > LIMIT)


def measure(width: int, repeats: int) -> float:
    """Print one table; the ratio of the step with the memory."""
    torch.manual_seed(0)
    objective = TorchObjective(ResNet18(width).build((3, 32, 32), 10))
    params = objective.flat.read()
    data = Samples(torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,)))
    memory, moment = Taylor(Fisher()), Moment(RECORDS, None, BATCH)
    kept = remembered(memory, objective, params)
    past = memory.recall(kept, Uniform(), moment)
    assert past.quadratic is not None
    spans, gradient = past.quadratic.spans, torch.randn_like(params)

    def step(surrogate: Surrogate) -> Callable[[], object]:
        local = ClientLocal(objective, data, surrogate, Train(batch_size=BATCH), torch.Generator())
        return lambda: params.sub_(local.stochastic_gradient(params), alpha=1e-6)

    def observe(curvature: Fisher | Hutchinson | SquaredGradient) -> Callable[[], object]:
        return lambda: Taylor(curvature).observe(objective, params, data, torch.Generator())

    quick = {
        "step, Taylor collapsed": step(past),
        "  its arithmetic alone": lambda: past.add_gradient_(gradient, params),
    }
    rare = {
        "naive sum of 40 terms": lambda: naive(kept, take(params, spans)),
        "collapse on the server, once a round": lambda: memory.recall(kept, Uniform(), moment),
        "observe, squared gradient": observe(SquaredGradient()),
        "observe, Fisher": observe(Fisher()),
        "observe, Hutchinson, 1 probe": observe(Hutchinson(1)),
    }
    plain = step(Surrogate())
    unit, ratios = interleaved(plain, quick, repeats)
    ratios |= interleaved(plain, rare, 3)[1]
    size = len(past.quadratic.linear)
    print(f"\nwidth {width}: {len(params):,} parameters, {size:,} remembered in {len(spans)} spans")
    print(f"{'FedAvg step':38} {1:9.4f}   ({unit:.3f} s)")
    for name, several in ratios.items():
        low, high = min(several), max(several)
        print(f"{name:38} {statistics.median(several):9.4f}   ({low:.4f} to {high:.4f})")
    return statistics.median(ratios["step, Taylor collapsed"])


def remembered(memory: Taylor, objective: TorchObjective, params: Vector) -> tuple[MemoryItem, ...]:
    """Records with random numbers of the sizes that the model gives."""
    tiny = Samples(torch.randn(1, 3, 8, 8), torch.zeros(1, dtype=torch.int64))
    one = memory.observe(objective, params, tiny, torch.Generator())
    random = [
        {
            **one,
            "linear": torch.randn_like(one["linear"]),
            "diagonal": torch.rand_like(one["linear"]),
        }
        for _ in range(DISTINCT)
    ]
    return tuple(MemoryItem(k, 0, 0, BATCH, random[k % DISTINCT]) for k in range(RECORDS))


def naive(kept: tuple[MemoryItem, ...], params: Vector) -> Vector:
    """The paper's sum, term by term: p (g + h (w - w_hat))."""
    total = torch.zeros_like(params)
    for k, item in enumerate(kept):
        there = kept[k - 1].record["linear"]  # any vector of that size that is not in the cache
        term = item.record["linear"] + item.record["diagonal"] * (params - there)
        total.add_(term, alpha=1 / (len(kept) + 1))
    return total


def interleaved(
    plain: Callable[[], object], others: dict[str, Callable[[], object]], repeats: int
) -> tuple[float, dict[str, list[float]]]:
    """Seconds of the plain step, and of all others their ratios to the one just before them."""
    units: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for repeat in range(repeats + 1):  # the first round warms up
        unit = seconds(plain)
        for name, other in others.items():
            ratio = seconds(other) / unit
            if repeat:
                ratios[name].append(ratio)
        units += [unit] if repeat else []
    return statistics.median(units), ratios


def seconds(call: Callable[[], object]) -> float:
    """Processor time, which other jobs on the machine change little."""
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
