"""Memory of processes, against allocations of known size."""

import mmap
import multiprocessing
import os

import numpy as np
import psutil
import pytest

from loaders.memory import MemorySampler, SharedArrays, Usage, process_usage, tree_usage

MIB = 1 << 20
SIZE = 128 * MIB


def hold(arrays, ready, done):
    int(arrays["a"].sum(dtype=np.int64))  # every page is mapped here
    ready.set()
    done.wait(600)


ALLOCATE = """
import sys
import numpy as np
from loaders.memory import process_usage

size = int(sys.argv[1])
process_usage()  # whatever a first call loads
before = process_usage()
block = np.ones(size, np.uint8)
after = process_usage()
print(block[0], after.uss - before.uss, after.uss, after.pss, after.rss)
"""


def test_unique_memory_grows_by_what_was_allocated(python):
    # In a process of its own: what other tests have left in this one may grow or shrink meanwhile.
    done = python("-c", ALLOCATE, SIZE)
    one, grown, uss, pss, rss = map(int, done.stdout.split())
    assert one == 1
    assert SIZE - MIB < grown < SIZE + 4 * MIB
    # Its share of what others map too changes with them, so growth says nothing of PSS.
    assert SIZE < uss <= pss <= rss


def test_shared_pages_count_once_over_the_tree_but_twice_as_resident():
    arrays = SharedArrays.create({"a": ("uint8", (SIZE,))})
    arrays["a"][:] = 1
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    alone = process_usage()
    child = context.Process(target=hold, args=(arrays, ready, done))
    child.start()
    try:
        assert ready.wait(600)
        usage = tree_usage()
    finally:
        done.set()
        child.join(600)
    # Earlier tests may have left helpers of multiprocessing behind: they are in the tree too.
    both = usage[os.getpid()] + usage[child.pid]
    assert usage[child.pid].rss > SIZE
    assert usage[child.pid].uss < SIZE / 2
    assert usage[child.pid].pss < 0.75 * usage[child.pid].rss
    assert both.pss < alone.pss + SIZE / 2
    assert both.rss > alone.rss + SIZE


def test_sampler_sees_a_peak_that_is_over_when_it_stops():
    with MemorySampler(interval=0.005) as sampler:
        base = sampler.sample()[os.getpid()]
        # Pages of the kernel's: an allocator that keeps its memory would give some that are held.
        with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
            block = np.frombuffer(pages, np.uint8)
            for _ in range(10_000):
                block += 1
                if sampler.peaks[os.getpid()].uss - base.uss > 0.9 * SIZE:
                    break
            del block
    assert sampler.peaks[os.getpid()].uss - base.uss > 0.9 * SIZE
    assert sampler.peak.uss >= sampler.peaks[os.getpid()].uss
    assert process_usage().uss < base.uss + SIZE / 2


def test_sampler_ends_its_thread_when_the_block_raises():
    sampler = MemorySampler()
    with pytest.raises(ValueError, match="on purpose"), sampler:
        raise ValueError("on purpose")
    assert not sampler._thread.is_alive()


def test_a_process_that_ended_is_an_error_alone_and_left_out_of_a_tree():
    context = multiprocessing.get_context("fork")
    child = context.Process(target=int)
    child.start()
    pid = child.pid
    child.join()
    with pytest.raises(psutil.NoSuchProcess):
        process_usage(pid)
    assert pid not in tree_usage()


def test_usage_adds_and_peaks_by_figure():
    one, other = Usage(1, 5, 9), Usage(3, 4, 8)
    assert one + other == Usage(4, 9, 17)
    assert one.peak(other) == Usage(3, 5, 9)
