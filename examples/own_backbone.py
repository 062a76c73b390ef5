"""Write a backbone of your own: it works with every memory, scenario and engine.

Run: python examples/own_backbone.py
"""

from chronofed import (
    Backbone,
    Classification,
    CoreSet,
    FedAvg,
    Method,
    Mlp,
    Subsets,
    Train,
    load_data,
    run,
)


class SignTie(Backbone):
    """FedAvg with a pull of constant strength towards the server's model, parameter by parameter.

    FedProx pulls in proportion to the distance (an L2 penalty); this is the L1 penalty.

    Attributes:
        strength: Weight of the penalty; 0 is FedAvg.
    """

    strength: float = 1e-4

    def direction(self, grad, params, server, client):
        """Return the direction of one local step."""
        return grad + self.strength * (params - server["params"]).sign()


def main() -> None:
    """Compare it with FedAvg, both with a core set as memory."""
    data = load_data("fashion-mnist-mini")
    scenario = Subsets(clients=5, subsets=10, client_alpha=0.1).on(data, seed=0)
    task = Classification(data, Mlp(hidden=(32,)))
    for backbone in (FedAvg(), SignTie(strength=1e-3)):
        method = Method(backbone, CoreSet(size=20))
        *_, last = run(method, scenario, task, rounds=8, train=Train(lr=0.05, steps=10))
        score = task.score(task.objective(), last.params, last.buffers, data.test)
        print(f"{type(backbone).__name__}: accuracy {score.accuracy:.3f}")


if __name__ == "__main__":
    main()
