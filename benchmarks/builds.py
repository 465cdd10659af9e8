"""What is timed: reading chips and nothing else, building a store from them, a build's memory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.child import GEOPREP, ChildError
from benchmarks.chips import Chips
from geoprep.building import build
from geoprep.executors import Threads
from geoprep.plan import BuildOptions, make_plan
from geoprep.sources import Scene, find_scenes
from geoprep.storage import open_image
from geoprep.store import Codec

MIB = 2**20

INTERVAL = 0.02
"""Seconds between looks at a command's memory."""


@dataclass(frozen=True, slots=True)
class Run:
    """One timed run over some chips.

    Attributes
    ----------
    seconds
        Wall time.
    source_bytes
        Bytes of pixels read, uncompressed.
    stages
        Stage to seconds of threads' time; builds only.
    before_seconds
        Of ``seconds``, spent on finding and planning; builds only.
    store_bytes
        Of the store on the disk; builds only.
    """

    chips: int
    seconds: float
    source_bytes: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    before_seconds: float = 0.0
    store_bytes: int = 0

    @property
    def rate(self) -> float:
        """Chips per second."""
        return self.chips / self.seconds


def decode(scenes: Sequence[Scene], workers: int) -> Run:
    """Read every chip's imagery as a build does, and drop it: the bound that a build can reach."""
    start = time.perf_counter()
    sizes = list(Threads(workers).map_unordered(_read, scenes))
    return Run(len(scenes), time.perf_counter() - start, sum(sizes))


def _read(scene: Scene) -> int:
    with open_image(scene.image) as dataset:
        wanted = range(1, dataset.count + 1)  # an alpha band too: a build needs it, and reads it
        shape = (dataset.height, dataset.width, len(wanted))
        values = np.empty(shape, dataset.dtypes[0])
        dataset.read(list(wanted), out=values.transpose(2, 0, 1))
        return values.nbytes


def build_store(chips: Chips, out: Path, *, workers: int, codec: Codec = "lz4") -> Run:
    """Build a store into a fresh folder, from finding the files to the last flush; remove it.

    Raises
    ------
    RuntimeError
        The build did not do the work.
    """
    executor, start = Threads(workers), time.perf_counter()
    found = find_scenes(chips.city, chips.folder)
    plan = make_plan([found], [chips.city.name], BuildOptions(codec=codec), executor)
    planned = time.perf_counter()
    summary = build(plan, out, executor)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    usable = summary.statuses.get("ok", 0) + summary.statuses.get("unlabelled", 0)
    if summary.state != "built" or usable != chips.count:
        raise RuntimeError(f"{summary.store}: {summary.state}, {summary.statuses}")
    return Run(
        chips.count,
        seconds,
        summary.source_bytes,
        summary.stages,
        planned - start,
        summary.store_bytes,
    )


def build_plainly(scenes: Sequence[Scene], out: Path) -> Run:
    """Build a store the usual way (`benchmarks.reference`), one chip at a time; remove it."""
    from benchmarks.reference import build_reference

    start = time.perf_counter()
    build_reference(scenes, out)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    return Run(len(scenes), seconds)


def build_command(given: Sequence[str], out: Path, workers: int) -> tuple[float, int]:
    """Run ``geoprep build-zarr`` and remove its store; return what `watched` does.

    Parameters
    ----------
    given
        Arguments that say what to build from.
    """
    where = ["--out", str(out), "--workers", str(workers), "--json"]
    found = watched([*GEOPREP, "build-zarr", *given, *where])
    shutil.rmtree(out)
    return found


def watched(command: Sequence[str]) -> tuple[float, int]:
    """Run a command; return its seconds, and the peak PSS of it and its children in bytes.

    Raises
    ------
    ChildError
        It failed; the message is its own.
    """
    from loaders import MemorySampler

    with tempfile.TemporaryFile("w+") as said:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        with MemorySampler(process.pid, interval=INTERVAL) as sampler:
            process.wait()
        if process.returncode:
            said.seek(0)
            raise ChildError(f"{' '.join(command)}: {said.read()}")
    return time.perf_counter() - start, sampler.peak.pss
