"""What a head and the mean of models cost: rounds of FedAvg with and without them, in turns in one process.

    python benchmarks/head_cost.py [A B C] [--blocks 5] [--engine serial]

Workloads A, B and C of ``benchmarks/peers``. After 128 rounds clients send sums in one round of eight, so eight rounds are a
block here (without the 128 rounds before them); other work on the machine meets both alike. Printed are medians over blocks of
CPU seconds a round, their ratio, and that of the rounds with sums, as all of the first 32 rounds are.
"""

import argparse
import statistics
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from chronofed_peer import METHODS, World, task_of, train
from workload import WORKLOADS

from chronofed import run
from chronofed.engines.auto import choose
from chronofed.methods.heads import base

# Sums come in the first round of every block.
WARM_UP, BLOCK = 7, base.EVERY


def batched(seconds: list[float]) -> list[list[float]]:
    """Cut into blocks."""
    return [seconds[k : k + BLOCK] for k in range(0, len(seconds), BLOCK)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["A", "B", "C"])
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--engine", default="serial")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Sums are soon asked for in one round of eight.
    base.OF_THE_PAST = 1
    total = WARM_UP + options.blocks * BLOCK
    for name in options.workloads:
        work = WORKLOADS[name]
        task, seconds = task_of(work), {"fedavg": [], "head": []}
        with ExitStack() as stack:
            rounds = {}
            for method in seconds:
                choice = choose(options.engine, None, task, METHODS[method], work.clients)
                engine = stack.enter_context(closing(choice.build(task)))
                rounds[method] = run(
                    METHODS[method],
                    World(work),
                    task,
                    rounds=total,
                    train=train(work),
                    engine=engine,
                )
            for number in range(total):
                for method, each in rounds.items():
                    begin = time.process_time()
                    next(each)
                    if number >= WARM_UP:
                        seconds[method].append(time.process_time() - begin)
        blocks = [[sum(part) / BLOCK for part in batched(each)] for each in seconds.values()]
        plain, with_head = (statistics.median(each) for each in blocks)
        ratio = statistics.median(h / p for p, h in zip(*blocks, strict=True))
        pairs = list(zip(*seconds.values(), strict=True))[::BLOCK]
        first = statistics.median(h / p for p, h in pairs)
        print(
            f"{name}: {plain:.4f} s, with average and head {with_head:.4f} s, ratio {ratio:.3f}; "
            f"of rounds with sums {first:.3f}"
        )


if __name__ == "__main__":
    main()
