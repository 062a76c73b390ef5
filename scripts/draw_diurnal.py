"""Draw who takes part in the diurnal scenario of docs/related.md: python scripts/draw_diurnal.py"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from chronofed.scenarios import Diurnal

ROUNDS, CLIENTS = 64, 20
TO = Path(__file__).parents[1] / "docs" / "_static" / "diurnal.png"


def main() -> None:
    membership = Diurnal(per_round=5, period=32)
    everyone = np.arange(CLIENTS)
    came = [(t, c) for t in range(ROUNDS) for c in membership.present(everyone, t, seed=0)]
    figure, (share, who) = plt.subplots(
        2, 1, sharex=True, figsize=(6.4, 3.6), height_ratios=(1, 2.4), layout="constrained"
    )
    share.plot([membership.share(t) for t in range(ROUNDS)], color="#0072b2")
    share.set(ylabel="share of day", ylim=(-0.05, 1.05))
    for clients, colour, label in (
        (range(CLIENTS // 2), "#0072b2", "day"),
        (range(CLIENTS // 2, CLIENTS), "#d55e00", "night"),
    ):
        points = [point for point in came if point[1] in clients]
        who.scatter(*zip(*points, strict=True), s=9, color=colour, label=label)
    who.set(xlabel="round", ylabel="client that takes part")
    figure.legend(
        *who.get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False
    )
    figure.savefig(TO, dpi=110)


if __name__ == "__main__":
    main()
