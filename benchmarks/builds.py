"""What is timed: reading chips and nothing else, building a store from them, a build's memory."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.chips import Chips
from geoprep.build import build
from geoprep.executors import Threads
from geoprep.plan import BuildOptions, make_plan
from geoprep.sources import Scene, find_scenes
from geoprep.storage import open_image
from geoprep.store import Codec

if TYPE_CHECKING:
    from geoprep.build import Summary

MIB = 2**20
INTERVAL = 0.02
"""Seconds between two looks at a process's memory."""

COMMAND = [sys.executable, "-c", "from geoprep.cli import main; main()"]
"""The `geoprep` command of this very interpreter, whether or not it is on the PATH."""


@dataclass(frozen=True, slots=True)
class Run:
    """One timed run over some chips.

    Attributes
    ----------
    seconds
        Wall time.
    cpu_seconds
        Processor time of the whole process, all threads: what other users of the machine change
        least.
    source_bytes
        Bytes of pixels read, uncompressed.
    stages
        Stage to seconds of threads' time; builds only.
    before_seconds
        Of ``seconds``, spent on finding and planning; builds only.
    store_bytes, pixel_bytes
        Of the store on the disk, and of its arrays uncompressed; builds only.
    """

    chips: int
    seconds: float
    cpu_seconds: float
    source_bytes: int
    stages: dict[str, float] = field(default_factory=dict)
    before_seconds: float = 0.0
    store_bytes: int = 0
    pixel_bytes: int = 0

    @property
    def rate(self) -> float:
        """Chips per second."""
        return self.chips / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of one core per chip."""
        return self.cpu_seconds / self.chips * 1e3


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory of a command and its children, in bytes.

    Attributes
    ----------
    pss
        Largest sum of proportional set sizes seen, sampled.
    rss
        Largest resident size of the command's own process, by the kernel's own count: nothing
        between two samples escapes it, but it counts shared libraries in full.
    """

    chips: int
    seconds: float
    pss: int
    rss: int


def decode(scenes: Sequence[Scene], workers: int) -> Run:
    """Read every chip's imagery as a build does, and drop it: the bound that a build can reach."""
    executor = Threads(workers)
    with _Clock() as clock:
        sizes = list(executor.map_unordered(_read, scenes))
    return Run(len(scenes), clock.seconds, clock.cpu_seconds, sum(sizes))


def _read(scene: Scene) -> int:
    with open_image(scene.image) as dataset:
        wanted = range(1, dataset.count + 1)  # an alpha band too: a build needs it, and reads it
        shape = (dataset.height, dataset.width, len(wanted))
        values = np.empty(shape, dataset.dtypes[0])
        dataset.read(list(wanted), out=values.transpose(2, 0, 1))
        return values.nbytes


def build_store(chips: Chips, out: Path, *, workers: int, codec: Codec = "lz4") -> Run:
    """Build a store into a fresh folder, from finding the files to the last flush; remove it."""
    shutil.rmtree(out, ignore_errors=True)
    executor = Threads(workers)
    with _Clock() as clock:
        found = find_scenes(chips.city, chips.folder)
        plan = make_plan([found], [chips.city.name], BuildOptions(codec=codec), executor)
        before = clock.lap()
        summary = build(plan, out, executor)
    _check(summary, chips)
    run = Run(chips.count, clock.seconds, clock.cpu_seconds, summary.source_bytes)
    sides = sum(level * level for level in summary.levels)
    shutil.rmtree(out)
    return replace(
        run,
        stages=summary.stages,
        before_seconds=before,
        store_bytes=summary.store_bytes,
        pixel_bytes=summary.tiles * sides * (len(plan.meta.bands) + 1),
    )


def build_plainly(scenes: Sequence[Scene], out: Path) -> Run:
    """Build a store the usual way (`benchmarks.reference`), one chip at a time; remove it."""
    from benchmarks.reference import build_reference

    shutil.rmtree(out, ignore_errors=True)
    with _Clock() as clock:
        stages = build_reference(scenes, out)
    shutil.rmtree(out)
    return Run(len(scenes), clock.seconds, clock.cpu_seconds, 0, stages)


def _check(summary: Summary, chips: Chips) -> None:
    """Refuse to time a build that did not do the work."""
    usable = summary.statuses.get("ok", 0) + summary.statuses.get("unlabelled", 0)
    if summary.state != "built" or usable != chips.count:
        raise RuntimeError(f"{summary.store}: {summary.state}, {summary.statuses}")


class _Clock:
    """Wall and processor time of a block."""

    def __enter__(self) -> _Clock:
        self._start, self._cpu = time.perf_counter(), _cpu_seconds()
        return self

    def lap(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start

    def __exit__(self, *error: object) -> None:
        self.seconds = self.lap()
        self.cpu_seconds = _cpu_seconds() - self._cpu


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def build_command(given: Sequence[str], out: Path, *, workers: int, chips: int) -> Memory:
    """Run ``geoprep build-zarr`` in a process of its own, and watch its memory; remove the store.

    Parameters
    ----------
    given
        Arguments that say what to build from.
    chips
        How many scenes that are.

    Raises
    ------
    RuntimeError
        The command failed; the message is its own.
    """
    shutil.rmtree(out, ignore_errors=True)
    where = ["--out", str(out), "--workers", str(workers), "--json"]
    memory = watched([*COMMAND, "build-zarr", *given, *where], chips)
    shutil.rmtree(out)
    return memory


def watched(command: Sequence[str], chips: int) -> Memory:
    """Run a command and watch the memory of it and its children.

    Raises
    ------
    RuntimeError
        It failed; the message is its own.
    """
    from loaders import MemorySampler

    highest = 0
    with tempfile.TemporaryFile() as said, _Clock() as clock:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        with MemorySampler(process.pid, INTERVAL) as sampler:
            while process.poll() is None:
                highest = max(highest, _high_water(process.pid))
                time.sleep(INTERVAL)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {said.read().decode()}")
    return Memory(chips, clock.seconds, sampler.peak.pss, highest)


def _high_water(pid: int) -> int:
    """Return a process's largest resident size so far; 0 when it has just ended.

    Not ``ru_maxrss``: that one begins with the size of the process that started it.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
