"""Mutated messages and client stores: something valid or an error of ours, in bounded time and memory."""

import random
import resource
import time
import tracemalloc
from collections import Counter

import pytest

from tests.corpus.mutated_bytes import (
    World,
    damage_store,
    message_seeds,
    mutated,
    outcome,
    read_store,
    record_seeds,
    store_bytes,
)

MAX_CPU_S = 10.0
"""CPU seconds of one case; a normal one takes milliseconds."""
MAX_CASE_BYTES = 64 * 2**20
"""Python's memory in one case."""
MAX_GROWTH_BYTES = 512 * 2**20
"""Growth of the whole process over all cases, also outside Python."""


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bounded(read) -> str:
    """Run one case within its bounds."""
    tracemalloc.reset_peak()
    before, start = tracemalloc.get_traced_memory()[0], time.process_time()
    found = outcome(read)
    assert time.process_time() - start < MAX_CPU_S
    assert tracemalloc.get_traced_memory()[1] - before < MAX_CASE_BYTES
    return found


def run_messages(count: int, seed: int) -> Counter:
    seeds = [*message_seeds(World()), *record_seeds(World())]
    found = Counter()
    for case in range(count):
        rng = random.Random(f"{seed}/{case}")
        chosen = seeds[case % len(seeds)]
        content = mutated(chosen.content, rng)
        try:
            found[chosen.kind, bounded(lambda c=chosen, b=content: c.read(b))] += 1
        except Exception as error:
            error.add_note(f"case {case} of seed {seed}: {chosen.kind}")
            raise
    return found


def run_stores(count: int, seed: int, folder) -> Counter:
    content, found = store_bytes(World(), folder / "valid.sqlite"), Counter()
    for case in range(count):
        path = folder / f"{case}.sqlite"
        damage_store(path, content, random.Random(f"{seed}/{case}"))
        try:
            found["client store", bounded(lambda p=path: read_store(p))] += 1
        except Exception as error:
            error.add_note(f"case {case} of seed {seed}: client store")
            raise
        for left in folder.glob(f"{case}.sqlite*"):
            left.unlink()
    return found


@pytest.fixture
def traced():
    before = peak_rss_bytes()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    assert peak_rss_bytes() - before < MAX_GROWTH_BYTES


def test_seeds_are_valid(tmp_path):
    """Otherwise mutations would be refused for the wrong reason."""
    for seed in (*message_seeds(World()), *record_seeds(World())):
        assert outcome(lambda s=seed: s.read(s.content)) == "valid", seed.kind
    store_bytes(World(), tmp_path / "valid.sqlite")
    read_store(tmp_path / "valid.sqlite")


@pytest.mark.usefixtures("traced")
def test_some_mutated_messages_and_records():
    found = run_messages(200, seed=0)
    assert found["order", "MessageError"] > 30
    assert found["reply", "MessageError"] > 30
    assert found["order", "valid"] > 0


@pytest.mark.usefixtures("traced")
def test_some_mutated_client_stores(tmp_path):
    found = run_stores(40, seed=0, folder=tmp_path)
    assert found["client store", "RunError"] > 10


@pytest.mark.corpus
@pytest.mark.usefixtures("traced")
def test_ten_thousand(tmp_path, capsys):
    found = run_messages(8000, seed=1) + run_stores(2000, seed=1, folder=tmp_path)
    with capsys.disabled():
        print()
        for (kind, result), number in sorted(found.items()):
            print(f"{number:6d}  {kind}: {result}")
    assert found.total() == 10_000
