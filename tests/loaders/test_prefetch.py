"""Prefetching: in order, bounded, no thread left after a loop, no buffer reused while in use."""

import gc
import threading
import time

import numpy as np
import pytest
import torch
from helpers.streams import threads_end

from loaders.batch import BufferPool
from loaders.prefetch import Prefetcher


def workers():
    return sum(thread.name.startswith("loaders-fill") for thread in threading.enumerate())


def slow_first(item):
    time.sleep(0.02 if item == 0 else 0)
    return item * item


@pytest.mark.parametrize("prefetch", [0, 1, 7, 100])
def test_results_come_in_order_whatever_is_ready_first(prefetch):
    results = Prefetcher(slow_first, range(30), threads=3, prefetch=prefetch)
    assert list(results) == [i * i for i in range(30)]
    assert workers() == 0


def test_no_more_items_are_taken_than_prefetch_allows():
    taken = 0

    def items():
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


def test_an_exception_in_the_loop_ends_its_threads():
    def loop():
        for _ in Prefetcher(slow_first, range(100), threads=2, prefetch=4):
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        loop()
    assert threads_end()


def test_an_exception_in_a_thread_is_raised_in_order():
    def fail_at_three(item):
        if item == 3:
            raise RuntimeError("item 3")
        return item

    results = Prefetcher(fail_at_three, range(10), threads=2, prefetch=5)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="item 3"):
        next(results)
    assert workers() == 0


def pool(spare):
    return BufferPool(2, 5, 3, spare)


def block(blocks):
    return torch.from_numpy(blocks.take())


def test_a_released_block_is_reused():
    blocks = pool(spare=2)
    first = block(blocks)
    assert len(first) == blocks.nbytes == 192 + 64 + 3 * 64
    address = first.data_ptr()
    del first
    assert block(blocks).data_ptr() == address


def test_any_view_keeps_its_block():
    blocks = pool(spare=2)
    views = [
        lambda t: t[:64].view(8, 8).permute(1, 0)[2:, 3],
        lambda t: t[5:9].numpy(),
        lambda t: np.asarray(t[8:16].view(torch.int64)),
        lambda t: t.view(torch.int32)[1:].numpy()[2:],
    ]
    for view in views:
        held = view(block(blocks))
        taken = {block(blocks).data_ptr() for _ in range(5)}
        address = held.ctypes.data if isinstance(held, np.ndarray) else held.data_ptr()
        assert not any(start <= address < start + blocks.nbytes for start in taken)
        del held


def test_a_caller_that_keeps_everything_gets_new_blocks_not_a_deadlock():
    blocks = pool(spare=1)
    held = [block(blocks).fill_(i) for i in range(50)]
    assert [int(t[0]) for t in held] == list(range(50))


def test_no_more_than_the_spare_blocks_are_kept():
    blocks = pool(spare=3)
    held = [blocks.take() for _ in range(10)]
    del held
    gc.collect()
    assert len(blocks._blocks) == 3
