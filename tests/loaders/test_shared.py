"""Shared memory: one copy under any start method, and nothing is left after its last process."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from geoprep.errors import UsageError
from loaders.memory import SharedArrays

LAYOUT = {"a": ("uint8", (3, 5)), "b": ("float64", (7,))}


def filled():
    arrays = SharedArrays.create(LAYOUT)
    arrays["a"][:] = np.arange(15).reshape(3, 5)
    arrays["b"][:] = np.linspace(0, 1, 7)
    return arrays


def total(arrays):
    return float(arrays["a"].sum() + arrays["b"].sum())


def send_total(arrays, queue):
    queue.put(total(arrays))


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def shm_names():
    # Without semaphores: those of other processes of this machine come and go.
    return {p.name for p in Path("/dev/shm").iterdir() if not p.name.startswith("sem.")}


def test_attached_arrays_are_the_same_memory_and_read_only():
    arrays = filled()
    attached = pickle.loads(pickle.dumps(arrays))
    arrays["a"][2, 4] = 99
    assert attached["a"][2, 4] == 99
    with pytest.raises(ValueError, match="read-only"):
        attached["a"][0, 0] = 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_attach_under_every_start_method(method):
    context = multiprocessing.get_context(method)
    arrays, queue = filled(), context.Queue()
    child = context.Process(target=send_total, args=(arrays, queue))
    child.start()
    found = queue.get(timeout=600)
    child.join(600)
    assert found == total(arrays)
    assert child.exitcode == 0


def test_a_forked_child_has_its_own_handle():
    arrays = filled()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, pickle.dumps(arrays.handle))
        os.read(read, 0)
        signal.pause()
    try:
        handle = pickle.loads(os.read(read, 4096))
        assert handle.pid == pid
        assert SharedArrays.attach(handle, LAYOUT)["a"].sum() == arrays["a"].sum()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


def test_attaching_after_the_owner_ended_is_an_error(python):
    gone = int(python("-c", "import os; print(os.getpid())").stdout)
    handle = filled().handle._replace(pid=gone)
    with pytest.raises(UsageError, match=f"process {gone}.*RamTiles.load"):
        SharedArrays.attach(handle, LAYOUT)


def test_a_descriptor_that_was_reused_is_not_taken_for_the_memory():
    with Path(os.devnull).open() as other:
        handle = filled().handle._replace(fd=other.fileno())
        with pytest.raises(UsageError, match="has closed its tiles"):
            SharedArrays.attach(handle, LAYOUT)


def test_arrays_outlive_their_owner_and_descriptors_are_closed():
    before = descriptors()
    for _ in range(20):
        arrays = filled()
        attached = pickle.loads(pickle.dumps(arrays))
        kept = attached["a"]
        del arrays, attached
    assert kept.sum() == np.arange(15).sum()
    del kept
    assert descriptors() == before


OWNER = """
import signal, sys, pickle
from loaders.memory import SharedArrays
arrays = SharedArrays.create({"a": ("uint8", (16 << 20,))})
arrays["a"][:] = 3
sys.stdout.buffer.write(pickle.dumps(arrays)); sys.stdout.flush(); sys.stdout.close()
signal.pause()
"""


def test_sigkill_of_the_owner_leaves_nothing_and_readers_continue():
    names = shm_names()
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    try:
        attached = pickle.load(owner.stdout)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    assert int(attached["a"].sum(dtype=np.int64)) == 3 * (16 << 20)
    assert shm_names() <= names
