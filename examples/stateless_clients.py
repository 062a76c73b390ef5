"""Train with clients that never come back: which methods are refused, and how the others do.

Run: python examples/stateless_clients.py
"""

from chronofed import (
    ChronofedError,
    Classification,
    CoreSet,
    FedAvg,
    Method,
    MimeLite,
    Mlp,
    Optimal,
    Scaffold,
    Stateless,
    Taylor,
    Train,
    load_data,
    run,
)

METHODS = {
    "FedAvg": Method(FedAvg()),
    "MimeLite": Method(MimeLite()),
    # A Taylor expansion of each past objective lives on the server, so clients need no state.
    "FedAvg + Taylor": Method(FedAvg(), Taylor(), Optimal(1.0, 0.5)),
    # These two keep something on the client, which is lost if the client never comes back.
    "FedAvg + core set": Method(FedAvg(), CoreSet(size=20)),
    "Scaffold": Method(Scaffold()),
}


def main() -> None:
    """Run every method, or print why it cannot run."""
    data = load_data("fashion-mnist-mini")
    scenario = Stateless(clients=5, subsets=10, client_alpha=0.2).on(data, seed=0)
    task = Classification(data, Mlp(hidden=(32,)))
    for name, method in METHODS.items():
        try:
            *_, last = run(method, scenario, task, rounds=8, train=Train(lr=0.05, steps=10))
        except ChronofedError as error:
            print(f"{name}: refused: {error}")
            continue
        score = task.score(task.objective(), last.params, last.buffers, data.test)
        print(f"{name}: accuracy {score.accuracy:.3f}")


if __name__ == "__main__":
    main()
