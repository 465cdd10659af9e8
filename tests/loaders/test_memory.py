"""Shared memory is held once by all processes that map it."""

import multiprocessing

import numpy as np
import psutil

from loaders.memory import SharedArrays

SIZE = 128 << 20


def hold(arrays, ready, done):
    int(arrays["a"].sum(dtype=np.int64))  # every page is mapped here
    ready.set()
    done.wait(600)


def test_shared_pages_count_once_over_processes_but_twice_as_resident():
    arrays = SharedArrays.create({"a": ("uint8", (SIZE,))})
    arrays["a"][:] = 1
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    alone = psutil.Process().memory_full_info()
    child = context.Process(target=hold, args=(arrays, ready, done))
    child.start()
    try:
        assert ready.wait(600)
        parent, other = (psutil.Process(pid).memory_full_info() for pid in (None, child.pid))
    finally:
        done.set()
        child.join(600)
    assert other.rss > SIZE
    assert other.uss < SIZE / 2
    assert parent.pss + other.pss < alone.pss + SIZE / 2
    assert parent.rss + other.rss > alone.rss + SIZE
