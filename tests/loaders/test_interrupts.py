"""Ctrl-C at any moment of a loop: it is raised once, and no thread is left."""

LOOP = """
import faulthandler, random, signal, sys, threading, time
signal.signal(signal.SIGALRM, signal.default_int_handler)
from loaders import BatchLoader, RamTiles, StreamTiles

path, trials = sys.argv[1], int(sys.argv[2])
lost = []

def lose(found):
    lost.append(repr(found.exc_value))
    print("lost in", found.object, file=sys.stderr, flush=True)

sys.unraisablehook = lose
random.seed(1)

def loop(loader, leave):
    while True:
        for number, batch in enumerate(loader):
            if leave and number == 2:
                break

def interrupt(tiles, leave):
    loader = BatchLoader(tiles, 3, crop=16, augment="d4", crops_per_tile=3, threads=3)
    list(loader)
    arrived, others = 0, []
    for trial in range(trials):
        # A deadlock, or an interrupt that never arrives; a busy machine is only slow.
        faulthandler.dump_traceback_later(300, exit=True)
        try:  # the first thing in it: a busy machine may let the time pass within this call
            signal.setitimer(signal.ITIMER_REAL, random.random() * 0.008 + 1e-5)
            loop(loader, leave)
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

interrupt(RamTiles.load(path), leave=False)
interrupt(StreamTiles.open(path, ram_limit=40 * 4096, lanes=2), leave=True)
"""


def test_every_interrupt_is_raised_and_no_thread_is_left(make_store, python):
    path = make_store(scenes=50, shard_tiles=7, levels=(32,))
    done = python("-c", LOOP, path, 100)
    assert done.returncode == 0, done.stderr
    expected = ["arrived 100, lost 0, others [], left 0", "a whole epoch after it: 160 of 160"]
    assert done.stdout.splitlines() == 2 * expected
    assert done.stderr == ""


EXIT = """
import sys
from loaders import BatchLoader, RamTiles, StreamTiles

begun = []
for tiles in (RamTiles.load(sys.argv[1]), StreamTiles.open(sys.argv[1])):
    begun.append(iter(BatchLoader(tiles, 3, crop=16, prefetch=40, threads=3)))
    next(begun[-1])
print("done")
"""


def test_a_program_that_ends_in_mid_epoch_ends(store_path, python):
    done = python("-c", EXIT, store_path)
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
