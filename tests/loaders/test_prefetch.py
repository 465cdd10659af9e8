"""Prefetching: in order, bounded, and no thread is left after a loop."""

from __future__ import annotations

import threading
import time

import pytest
from helpers.streams import threads_end

from loaders.prefetch import Prefetcher


def workers() -> int:
    return sum(thread.name.startswith("loaders-fill") for thread in threading.enumerate())


def slow_first(item: int) -> int:
    time.sleep(0.02 if item == 0 else 0)
    return item * item


@pytest.mark.parametrize("prefetch", [0, 1, 7, 100])
def test_results_come_in_order_whatever_is_ready_first(prefetch: int):
    results = Prefetcher(slow_first, range(30), threads=3, prefetch=prefetch)
    assert list(results) == [i * i for i in range(30)]
    assert workers() == 0


def test_no_more_items_are_taken_than_prefetch_allows():
    taken = 0

    def items() -> object:
        nonlocal taken
        for i in range(100):
            taken = i + 1
            yield i

    results = Prefetcher(abs, items(), threads=2, prefetch=3)
    for i in range(10):
        next(results)
        assert taken == i + 4
    results.close()
    assert workers() == 0


def test_a_broken_loop_ends_its_threads():
    for result in Prefetcher(slow_first, range(100), threads=2, prefetch=4):
        if result == 9:
            break
    assert threads_end()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_loop_ends_its_threads(error: type[BaseException]):
    def loop() -> None:
        for _ in Prefetcher(slow_first, range(100), threads=2, prefetch=4):
            raise error("on purpose")

    with pytest.raises(error, match="on purpose"):
        loop()
    assert threads_end()


def test_an_exception_in_a_thread_is_raised_in_order():
    def fail_at_three(item: int) -> int:
        if item == 3:
            raise RuntimeError("item 3")
        return item

    results = Prefetcher(fail_at_three, range(10), threads=2, prefetch=5)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="item 3"):
        next(results)
    assert workers() == 0
