"""Ctrl-C at any moment of a loop: it is raised once, and no thread is left."""

import pytest

LOOP = """
import faulthandler, random, signal, sys, threading, time
signal.signal(signal.SIGALRM, signal.default_int_handler)
from loaders import BatchLoader, RamTiles, StreamTiles

kind, path, trials, leave = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "break"
lost = []

def lose(found):
    lost.append(repr(found.exc_value))
    print("lost in", found.object, file=sys.stderr, flush=True)

sys.unraisablehook = lose
if kind == "ram":
    tiles = RamTiles.load(path)
else:
    tiles = StreamTiles.open(path, ram_limit=40 * 4096, lanes=2)
loader = BatchLoader(tiles, 3, crop=16, augment="d4", crops_per_tile=3, threads=3)
list(loader)
random.seed(1)
arrived, others = 0, []

def loop():
    while True:
        for number, batch in enumerate(loader):
            if leave and number == 2:
                break

for trial in range(trials):
    # Of each trial: a deadlock, or an interrupt that never arrives; a busy machine is only slow.
    faulthandler.dump_traceback_later(300, exit=True)
    try:  # the first thing in it: a busy machine may let the time pass within this call
        signal.setitimer(signal.ITIMER_REAL, random.random() * 0.008 + 1e-5)
        loop()
    except KeyboardInterrupt:
        arrived += 1
    except BaseException as error:
        others.append(repr(error))
    signal.setitimer(signal.ITIMER_REAL, 0)
end = time.monotonic() + 300
while [t for t in threading.enumerate() if t.name.startswith("loaders-")]:
    if time.monotonic() > end:
        break
    time.sleep(0.01)
left = [t.name for t in threading.enumerate() if t.name.startswith("loaders-")]
print(f"arrived {arrived}, lost {len(lost)}, others {others[:3]}, left {len(left)}")
print(f"a whole epoch after it: {len(list(loader))} of {len(loader)}")
"""


@pytest.mark.parametrize(("kind", "leave"), [("ram", "exhaust"), ("stream", "break")])
def test_every_interrupt_is_raised_and_no_thread_is_left(make_store, python, kind, leave):
    path = make_store(scenes=50, shard_tiles=7, levels=(32,))
    done = python("-c", LOOP, kind, path, 150, leave)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "arrived 150, lost 0, others [], left 0",
        "a whole epoch after it: 160 of 160",
    ]
    assert done.stderr == ""


EXIT = """
import sys
from loaders import BatchLoader, RamTiles, StreamTiles

tiles = RamTiles.load(sys.argv[2]) if sys.argv[1] == "ram" else StreamTiles.open(sys.argv[2])
batches = iter(BatchLoader(tiles, 3, crop=16, prefetch=40, threads=3))
next(batches)
print("done")
"""


@pytest.mark.parametrize("kind", ["ram", "stream"])
def test_a_program_that_ends_in_mid_epoch_ends(store_path, python, kind):
    done = python("-c", EXIT, kind, store_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


FORK = """
import os, sys
from geoprep.errors import UsageError
from loaders import BatchLoader, RamTiles

loader = BatchLoader(RamTiles.load(sys.argv[1]), 3, crop=16, prefetch=1, threads=2)
batches = iter(loader)
next(batches)
if os.fork() == 0:
    try:
        list(batches)
    except UsageError as error:
        print(error, flush=True)
    print(len(list(loader)), flush=True)
    os._exit(0)
os.wait()
print(len(list(batches)))
"""


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(store_path, python):
    # Python 3.12 warns of any fork in a process with threads, which this test needs.
    done = python("-W", "ignore::DeprecationWarning", "-c", FORK, store_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "this process was forked in the middle of an iteration",
        "10",
        "9",
    ]
