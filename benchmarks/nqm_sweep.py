"""The paper's sweep on the noisy quadratic model, on one core, against the literal loop.

    python benchmarks/nqm_sweep.py

Prints seconds for 8 settings x 5 algorithms x 40 learning rates x 100 seeds x 100 rounds, microseconds a run,
and how much faster that is than a run through the real backbones and memories.
"""

import os
import statistics
import time

os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

from chronofed.theory import nqm
from chronofed.theory.nqm.sweep import LRS

SEEDS = 100


def main() -> None:
    models = nqm.settings(nqm.PRESETS["p1"])
    runs = len(models) * len(nqm.ALGORITHMS) * len(LRS) * SEEDS
    list(nqm.sweep({"warm": nqm.Model(rounds=5)}, lrs=LRS[:2], seeds=2))
    literal, sweeps = [], []
    for repeat in range(3):  # interleaved: the machine may be shared
        for algorithm in nqm.ALGORITHMS:
            begin = time.perf_counter()
            nqm.literal(models["BRD-SL-SC"], algorithm, lr=0.1, seed=repeat)
            literal.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        cells = list(nqm.sweep(models, seeds=SEEDS))
        sweeps.append(time.perf_counter() - begin)
        assert len(cells) == 40
    sweep, one = statistics.median(sweeps), statistics.mean(literal)
    print(f"sweep: {sweep:.1f} s for {runs:,} runs (of {', '.join(f'{s:.1f}' for s in sweeps)})")
    print(f"a run: {1e6 * sweep / runs:.0f} microseconds; literal: {one:.2f} s")
    print(f"ratio: {one * runs / sweep:,.0f}")


if __name__ == "__main__":
    main()
