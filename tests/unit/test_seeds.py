"""Random numbers belong to a place in the run; torch's global generator is lent to one block at a time."""

from threading import Barrier, Event, Thread
from time import sleep

import torch

from chronofed.core.seeds import (
    entropy,
    global_torch_seed,
    torch_generator,
    torch_state_restored,
)


def test_a_place_has_one_number_and_no_other_place_has_it():
    places = [
        (s, *p) for s in range(3) for p in [("a",), ("a", 1), ("a", 1, 1), ("a", 11), ("b", 1)]
    ]
    assert len({entropy(*place) for place in places}) == len(places)
    assert torch.equal(
        torch.rand(4, generator=torch_generator(0, "a", 1)),
        torch.rand(4, generator=torch_generator(0, "a", 1)),
    )


def test_the_global_generator_is_put_back_even_if_the_block_fails():
    before = torch.get_rng_state()
    try:
        with global_torch_seed(0, "block"):
            torch.rand(3)
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_do_not_disturb_each_others_blocks():
    before, start, drawn = torch.get_rng_state(), Barrier(4), {}

    def draw(number: int) -> None:
        start.wait()
        with global_torch_seed(number, "thread"):
            first = torch.rand(2)
            sleep(0.01)
            with global_torch_seed(99, "inner"):  # blocks of one thread may be nested
                torch.rand(1)
            drawn[number] = torch.cat([first, torch.rand(2)])

    threads = [Thread(target=draw, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        expected = torch.rand(4, generator=torch_generator(number, "thread"))
        assert torch.equal(drawn[number], expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_state_is_never_restored_inside_the_seeded_block_of_another_thread():
    """A rehearsal may end while another run of the same process draws its initial model."""
    with global_torch_seed(3, "initial"):
        right = torch.rand(4)
    inside, go_on, drawn = Event(), Event(), []

    def draw():
        with global_torch_seed(3, "initial"):
            drawn.append(torch.rand(2))
            inside.set()
            go_on.wait()
            drawn.append(torch.rand(2))

    def rehearse():
        with torch_state_restored():
            entered.set()
            inside.wait()

    entered = Event()
    other = Thread(target=rehearse)
    other.start()
    entered.wait()
    drawing = Thread(target=draw)
    drawing.start()
    inside.wait()
    other.join(0.2)
    assert other.is_alive()  # it waits for the end of the block
    go_on.set()
    drawing.join()
    other.join()
    assert torch.equal(torch.cat(drawn), right)
