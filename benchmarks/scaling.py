"""Measure the overhead of builds of very many scenes: ``python -m benchmarks.scaling``.

Three costs grow with the number of scenes and do not shrink with more machines: the plan, the work
of scheduler and client per task, and the tables at the end. The scenes are invented: no image is
read or written. On a cluster, memory and processor time of client, scheduler and workers are
recorded ten times::

    dask scheduler --host 127.0.0.1 --port 8786 &
    dask worker tcp://127.0.0.1:8786 --nthreads 1 &  # as many as wanted
    python -m benchmarks.scaling --scheduler tcp://127.0.0.1:8786
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.common import command, machine
from benchmarks.memory import resident
from geoprep.building.inputs import InputFiles
from geoprep.building.journal import Journal
from geoprep.building.options import BuildOptions
from geoprep.building.plan import Plan, make_plan
from geoprep.building.records import Outcome, ShardRecord, ShardTask
from geoprep.building.run import Histograms, finish, shard_tasks
from geoprep.building.scene import Described
from geoprep.executors.cluster import Dask
from geoprep.executors.threads import Threads
from geoprep.grid import Grid
from geoprep.imagery.scenes import OpenScene
from geoprep.options import option
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.store.writer import create_store

T = TypeVar("T")
R = TypeVar("R")
Used = dict[str, float]
Watch = Callable[[], dict[str, Used]]
SIDE = 1300
STEP = SIDE * 2.7e-6


class InventedHeaders(Threads):
    """An executor that returns descriptions of invented images."""

    def map_unordered(
        self, function: Callable[[Any], Any], items: Iterable[Any], lost: object = None
    ) -> Iterator[Any]:
        """Yield scenes in rows northwards from the equator."""
        for first, some in items:
            yield first, [_described(i, item[0]) for i, item in enumerate(some, first)]


def _described(index: int, scene: Scene) -> Described:
    from rasterio.transform import Affine

    row, col = divmod(index, 1000)
    place = Affine(2.7e-6, 0, col * STEP, 0, -2.7e-6, row * STEP)
    grid = Grid(crs="EPSG:4326", transform=place, height=SIDE, width=SIDE)
    names = (("red",), ("green",), ("blue",))
    inputs = InputFiles((scene.image,), 1, index + 1, index + 1, index + 1)
    opened = OpenScene(scene.image, grid, (1, 2, 3), "uint8", (), None, True, 1, False)
    return Described(scene.id, scene.image, scene.label, 0, inputs, opened, "", names, "")


def plan_of(scenes: int) -> Plan:
    """Return the plan of ``scenes`` labelled scenes of 1300 x 1300 x 3."""
    chips = [(f"AOI_0_Nowhere_chip{i}", f"/data/chip{i}") for i in range(scenes)]
    found = tuple(Scene(name, f"{file}.tif", f"{file}.geojson") for name, file in chips)
    return make_plan(
        [SourceScenes(found, origin="nowhere")], ["custom"], BuildOptions(), InventedHeaders(1)
    )


def pretend(task: ShardTask) -> ShardRecord:
    """Return a record of the size of a real shard's, without reading pixels."""
    record = ShardRecord(task.shard)
    tiles = sum(map(len, task.scenes))
    record.files = dict.fromkeys(task.meta.pixel_arrays(), ("0" * 32, 10**7))
    record.scenes = {str(one.index): Outcome(limits=((0.0, 255.0),) * 3) for one in task.scenes}
    record.road_fraction = record.valid_fraction = [0.5 + i / 1e5 for i in range(tiles)]
    record.histogram_band = [[1000 + i for i in range(256)] for _ in range(3)]
    record.histogram_speed = [1000 + i for i in range(256)]
    return record


def measure(scenes: int, shards: int, scheduler: str | None) -> dict[str, Any]:
    """Return seconds and memory of a plan, its tasks and its tables.

    Parameters
    ----------
    shards
        Largest number of shard tasks to run.
    scheduler
        Address of a Dask scheduler; None for threads, which measures the client alone.
    """
    start = time.perf_counter()
    plan = plan_of(scenes)
    result: dict[str, Any] = {
        "scenes": scenes,
        "shards": plan.shards,
        "plan_seconds": time.perf_counter() - start,
        "plan_peak_mb": resident() / 1e6,
    }
    count = min(shards, plan.shards)
    if scheduler is None:
        return result | _tasks(plan, count, Threads(), lambda: {"client": _used()})
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client:

        def watch() -> dict[str, Used]:
            workers = {f"worker {i}": one for i, one in enumerate(client.run(_used).values())}
            return {"client": _used(), "scheduler": client.run_on_scheduler(_used), **workers}

        return result | _tasks(plan, count, Dask(client), watch)


def _tasks(plan: Plan, count: int, executor: Dask | Threads, watch: Watch) -> dict[str, Any]:
    """Return seconds and memory of running tasks, writing the journal and the tables."""
    records, histograms, waiting = {}, Histograms(3), 0.0
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "a.zarr") as journal:
        store = Path(folder) / "a.zarr"
        tasks = shard_tasks(plan, str(store), range(count), {})
        used, start = [{"tasks": 0, **watch()}], time.perf_counter()
        for done, record in enumerate(executor.map_unordered(pretend, tasks), start=1):
            before = time.perf_counter()
            journal.write({"stamp": plan.fingerprint, "shard": record.to_json()})
            waiting += time.perf_counter() - before
            records[record.shard] = histograms.take(record)
            if done % max(1, count // 10) == 0:
                used.append({"tasks": done, **watch()})
        seconds = time.perf_counter() - start
        result: dict[str, Any] = {
            "tasks": count,
            "task_ms": 1000 * seconds / count,
            "journal_ms": 1000 * waiting / count,
            "used": used,
        }
        if count == plan.shards:
            start = time.perf_counter()
            create_store(store, plan.meta, plan.tiles)
            finish(plan, store, records, histograms)
            result |= {"tables_seconds": time.perf_counter() - start, "peak_mb": resident() / 1e6}
    return result


def _used() -> Used:
    """Return memory and processor time of the calling process."""
    import psutil

    times = psutil.Process().cpu_times()
    return {
        "rss_mb": round(psutil.Process().memory_info().rss / 1e6, 1),
        "cpu_seconds": round(times.user + times.system, 2),
    }


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """Options: of `benchmarks.scaling`."""

    scenes: int = option(800_000, "Number of scenes, 8 per shard.", "N", least=1)
    shards: int = option(100_000, "Largest number of shard tasks to run.", "N", least=1)
    scheduler: str | None = option(
        None, "Address of a Dask scheduler. Default: threads of this process.", "tcp://HOST:PORT"
    )


@command(ScalingOptions)
def main(given: ScalingOptions) -> int:
    """Measure, and print one JSON document."""
    result = measure(given.scenes, given.shards, given.scheduler)
    print(json.dumps(result | {"machine": machine()}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
