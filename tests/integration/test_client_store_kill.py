"""kill -9 while a client commits: afterwards there is the old round or the new one, whole, never a mixture."""

import multiprocessing
import os
import random
import signal
import time

import pytest
import torch

from chronofed.clients.state import ClientState
from chronofed.clients.store import ClientStore, inspect
from chronofed.methods.memories import MemoryItem

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["chronofed.clients.store"])

KEPT = 6
KILLS = 20


def content(number: int, shape: tuple[int, ...]) -> torch.Tensor:
    """What belongs to one round and no other."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 255, shape, dtype=torch.uint8, generator=generator)


def item(number: int) -> MemoryItem:
    n = 40 + number % 7
    record = {"x": content(number, (n, 784)), "y": torch.arange(n) % 10}
    return MemoryItem(number, 0, number, n, {**record, "rows": torch.arange(n) + 1000 * number})


def reply(number: int) -> bytes:
    return content(-number, (200_000 + number,)).numpy().tobytes()


def state(number: int) -> dict[str, torch.Tensor]:
    """A sum over all rounds: a round that is lost or counted twice shows."""
    return {
        "control": torch.tensor(float(sum(range(number + 1)))),
        "model": content(number, (99_999,)),
    }


def work(path, started) -> None:
    """Carry out order after order, as a client does, until somebody kills us."""
    while True:
        with ClientStore(path) as client_store:
            client_state = client_store.client_state()
            number = 0 if client_state is None else client_state.items[-1].round + 1
            kept = () if client_state is None else client_state.items
            total = 0.0 if client_state is None else float(client_state.backbone_state["control"])
            control = {"control": torch.tensor(total + number), "model": state(number)["model"]}
            started.set()
            client_store.commit(
                f"order {number}",
                reply(number),
                ClientState(control, (*kept, item(number))[-KEPT:]),
            )


def check(path) -> int:
    """The client store opens and holds one consistent triple; the number of the round."""
    with ClientStore(path) as client_store:
        order = client_store.inspect().order
        if order is None:
            assert client_store.client_state() is None
            return -1
        number = int(order.split()[1])
        assert client_store.reply(order) == reply(number)
        client_state = client_store.client_state()
    first = max(0, number - KEPT + 1)
    assert [k.round for k in client_state.items] == list(range(first, number + 1))
    for kept in client_state.items:
        wanted = item(kept.round)
        assert (kept.key, kept.size) == (wanted.key, wanted.size)
        assert all(torch.equal(t, kept.record[name]) for name, t in wanted.record.items())
    assert all(
        torch.equal(t, client_state.backbone_state[name]) for name, t in state(number).items()
    )
    return number


def killed(path, wait: float) -> None:
    started = CONTEXT.Event()
    process = CONTEXT.Process(target=work, args=(path, started))
    process.start()
    assert started.wait(300)
    time.sleep(wait)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.slow
def test_killed_at_random_instants_while_committing(tmp_path):
    path, chance, rounds = tmp_path / "client.sqlite", random.Random(7), [-1]
    for _ in range(KILLS):
        killed(path, chance.uniform(0, 0.25))
        rounds.append(check(path))
        assert rounds[-1] >= rounds[-2]
    assert rounds[-1] > KILLS / 2  # it got on, too
    assert inspect(path).samples == sum(item(n).size for n in range(rounds[-1] - 5, rounds[-1] + 1))


def die_in_commit(path, steps: int) -> None:
    """Commit once, and be killed after so many thousand steps of SQLite's machine."""
    with ClientStore(path) as client_store:
        client_state = client_store.client_state()
        number = client_state.items[-1].round + 1
        calls = iter(range(steps))

        def fatal() -> int:
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return 0

        client_store._database.set_progress_handler(fatal, 10)
        control = {
            "control": client_state.backbone_state["control"] + number,
            "model": state(number)["model"],
        }
        kept = (*client_state.items, item(number))[-KEPT:]
        client_store.commit(f"order {number}", reply(number), ClientState(control, kept))


def test_killed_in_the_middle_of_a_transaction(tmp_path):
    """Not by chance: after every part of a commit, from its first statement to its last."""
    path, ends = tmp_path / "client.sqlite", set()
    with ClientStore(path) as client_store:
        client_store.commit("order 0", reply(0), ClientState(state(0), (item(0),)))
    before = 0
    for steps in (0, 3, 6, 10, 20, 40, 80, 200, 100_000):
        process = CONTEXT.Process(target=die_in_commit, args=(path, steps))
        process.start()
        process.join()
        ends.add(process.exitcode)
        after = check(path)
        assert after == before + (process.exitcode == 0)
        before = after
    assert ends == {0, -signal.SIGKILL}
