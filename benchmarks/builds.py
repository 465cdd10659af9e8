"""Timed cases of `benchmarks.preprocess`: reading chips, building stores, memory of a build."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.child import GEOPREP, measure
from benchmarks.chips import Chips
from benchmarks.reference import build_reference
from geoprep.building.options import BuildOptions
from geoprep.building.plan import make_plan
from geoprep.building.run import build
from geoprep.executors.threads import Threads
from geoprep.sources.city_scenes import find_scenes
from geoprep.sources.scene import Scene
from geoprep.storage.inputs import open_image
from geoprep.store.schema import Codec

MIB = 2**20


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One timed run over some chips.

    Attributes
    ----------
    seconds
        Wall time.
    source_bytes
        Bytes of pixels read, uncompressed.
    store_bytes
        Size of the store on disk; builds only.
    """

    chips: int
    seconds: float
    source_bytes: int = 0
    store_bytes: int = 0

    @property
    def rate(self) -> float:
        """Chips per second."""
        return self.chips / self.seconds


def decode(scenes: Sequence[Scene], workers: int) -> TimedRun:
    """Time reading the imagery of every chip as a build does: the upper bound of a build's rate."""
    start = time.perf_counter()
    sizes = list(Threads(workers).map_unordered(_read, scenes))
    return TimedRun(len(scenes), time.perf_counter() - start, sum(sizes))


def _read(scene: Scene) -> int:
    with open_image(scene.image) as dataset:
        wanted = range(1, dataset.count + 1)  # with an alpha band: a build reads it too
        shape = (dataset.height, dataset.width, len(wanted))
        values = np.empty(shape, dataset.dtypes[0])
        dataset.read(list(wanted), out=values.transpose(2, 0, 1))
        return values.nbytes


def build_store(chips: Chips, out: Path, *, workers: int, codec: Codec = "lz4") -> TimedRun:
    """Time a build into a new folder, from finding the files to the last flush; remove the store.

    Raises
    ------
    RuntimeError
        The store was not built completely.
    """
    executor, start = Threads(workers), time.perf_counter()
    scenes = find_scenes(chips.city, chips.folder)
    plan = make_plan(
        [scenes], [chips.city.name], BuildOptions(codec=codec, rescale="scene"), executor
    )
    summary = build(plan, out, executor)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    usable = summary.statuses.get("ok", 0) + summary.statuses.get("unlabelled", 0)
    if summary.state != "built" or usable != chips.count:
        raise RuntimeError(f"{summary.store}: {summary.state}, {summary.statuses}")
    return TimedRun(chips.count, seconds, summary.source_bytes, summary.store_bytes)


def build_with_reference(scenes: Sequence[Scene], out: Path) -> TimedRun:
    """Time a build by `benchmarks.reference`, one chip at a time; remove the store."""
    start = time.perf_counter()
    build_reference(scenes, out)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    return TimedRun(len(scenes), seconds)


def build_command(given: Sequence[str], out: Path, workers: int) -> tuple[float, int]:
    """Run ``geoprep build-zarr`` and remove its store; return seconds and peak PSS in bytes.

    Parameters
    ----------
    given
        Arguments that name the sources.
    """
    where = ["--out", str(out), "--workers", str(workers), "--json"]
    used = measure([*GEOPREP, "build-zarr", *given, *where])
    shutil.rmtree(out)
    return used
