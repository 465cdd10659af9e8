"""Threads run tasks: order, errors, interrupts, number of tasks in flight."""

import threading
import time

import pytest

from geoprep.executors.threads import Threads


@pytest.fixture
def pool_threads():
    """Return what finds the threads of pools that a test has begun and left."""

    def found():
        now = [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor")]
        return set(now) - before

    before = set(threading.enumerate())  # other libraries keep pools of their own
    return found


def double(x):
    return 2 * x


def test_items_run_at_the_same_time():
    meeting = threading.Barrier(3, timeout=300)
    list(Threads(3).map_unordered(lambda _: meeting.wait(), range(3)))


def test_items_are_taken_only_as_workers_get_free():
    taken, finished = [], []

    def items():
        for i in range(30):
            assert len(taken) - len(finished) <= 2 * 2
            taken.append(i)
            yield i

    for _ in Threads(2).map_unordered(finished.append, items()):
        pass
    assert taken == list(range(30))


def test_an_exception_reaches_the_caller_and_nothing_more_is_begun(pool_threads):
    begun = []

    def fails_at_three(x):
        begun.append(x)
        if x == 3:
            raise ValueError("the third")
        return x

    with pytest.raises(ValueError, match="the third"):
        list(Threads(1).map_unordered(fails_at_three, range(100)))
    assert begun == [0, 1, 2, 3]
    assert not pool_threads()


def test_leaving_the_loop_waits_for_what_is_in_progress(pool_threads):
    started, ended = [], []

    def work(x):
        started.append(x)
        time.sleep(0.02)
        ended.append(x)
        return x

    def interrupted():
        for _ in Threads(2).map_unordered(work, range(1000)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(started) == sorted(ended)
    assert len(started) <= 6
    assert not pool_threads()


def test_items_that_cannot_be_made_are_an_error_too(pool_threads):
    def items():
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(Threads(2).map_unordered(double, items()))
    assert not pool_threads()
