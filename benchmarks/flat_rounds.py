"""Whether a round costs the same after 1,000 rounds as at the start.

    python benchmarks/flat_rounds.py

A capped core set and a collapsed Taylor memory, 7 clients with 30 data sets each, on the engine that ``auto``
chooses. Prints the median milliseconds of a round early and late, and their ratio.
"""

import statistics
import time
from contextlib import closing

from chronofed import (
    Classification,
    CoreSet,
    FedAvg,
    Method,
    Mlp,
    Optimal,
    Subsets,
    Taylor,
    Train,
    load_data,
    run,
)
from chronofed.engines.auto import choose

ROUNDS, EARLY, LATE = 1000, slice(100, 200), slice(900, 1000)
METHODS = {
    "FedAvg": Method(),
    "CFL-Core-Set, at most 600 samples a client": Method(FedAvg(), CoreSet(size=20, limit=600)),
    "CFL-Regularization, 40 records": Method(
        FedAvg(), Taylor(), Optimal(time_drift_sq=1.0, information_loss_sq=1.0)
    ),
}


def main() -> None:
    data = load_data("fashion-mnist-mini")
    task, train = Classification(data, Mlp((50,))), Train(lr=0.05, steps=5)
    scenario = Subsets(clients=7, subsets=30, client_alpha=0.1).on(data, seed=0)
    for name, method in METHODS.items():
        choice = choose("auto", None, task, method, 7)
        seconds = []
        with closing(choice.build(task)) as engine:
            begin = time.perf_counter()
            for _ in run(method, scenario, task, rounds=ROUNDS, train=train, engine=engine):
                now = time.perf_counter()
                seconds.append(now - begin)
                begin = now
        early, late = (1e3 * statistics.median(seconds[part]) for part in (EARLY, LATE))
        print(f"{name}: {early:.1f} ms early, {late:.1f} ms late, ratio {late / early:.2f}")


if __name__ == "__main__":
    main()
