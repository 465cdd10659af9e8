"""Memory of processes, against allocations of known size."""

import subprocess
import sys

import pytest

from benchmarks.child import ChildError, measure
from benchmarks.memory import settled_memory

SIZE = 128 << 20


def test_a_command_is_measured_with_its_children_at_their_peak():
    child = f"import time; b = bytearray({SIZE}); time.sleep(1); del b; time.sleep(0.5)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    seconds, peak = measure([sys.executable, "-c", code])
    assert seconds > 1.5
    assert SIZE < peak < SIZE + (64 << 20)
    with pytest.raises(ChildError, match="no such luck"):
        measure([sys.executable, "-c", "raise SystemExit('no such luck')"])


def test_held_memory_counts_a_file_in_memory_that_nobody_maps():
    write = f"fd = os.memfd_create('b'); os.pwrite(fd, bytes({SIZE}), 0)"
    code = f"import os; {write}; print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        process.stdout.readline()
        held = settled_memory(process.pid)
        process.stdin.close()
    assert SIZE < held < SIZE + (64 << 20)
