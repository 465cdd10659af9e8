"""Measure throughput and memory of the data loaders, compared with other loaders.

    python -m benchmarks.loaders [STORE] [--quick] [--json FILE] [--plot FILE]

All parts use the tiles of one store: the given one, or that of a synthetic city. The baselines are
copying the same bytes, zarrs alone, a common Dataset, other loaders (`make bench-peers` installs
them), and the time of a training step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common import (
    Result,
    announce,
    local_path,
    parser,
    reports_errors,
    run_parts,
    scratch_folder,
    status,
)
from benchmarks.loading.data import QUICK, LoadingSizes, random_tiles, synthetic_store, write_files
from benchmarks.loading.load_rate import ZARRS, measure_load
from benchmarks.loading.other_loaders import ENTRIES, measure_peers
from benchmarks.loading.throughput import (
    RESIDENCIES,
    measure_residency,
    measure_step_share,
    measure_throughput,
)
from benchmarks.loading.worker_memory import MANY, MODES, WORKERS, measure_memory
from benchmarks.peers.task import Task
from benchmarks.tables import Table, conclude, print_machine
from geoprep.cpus import usable_cpus
from loaders import RamTiles

PARTS = ("throughput", "residency", "load", "memory", "peers", "tax")
OTHER_SHAPES = ((650, 3), (512, 8))
"""Side and bands of further tiles for the part throughput."""
QUICK_SHAPES = ((160, 3), (128, 8))


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 if it ran, even if bounds were missed."""
    given = _arguments(arguments)
    sizes = QUICK if given.quick else LoadingSizes()
    result = Result("loaders", vars(given) | {"batch_size": sizes.batch_size, "crop": sizes.crop})
    print_machine(result)
    with scratch_folder(given.work, "loaders") as folder, status:
        work = Path(folder)
        announce("creating a city")
        store = given.store or synthetic_store(work, sizes, given.threads)
        _measure(result, store.resolve(), work, sizes)
    return conclude(result, given, tables(result))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    add = options.add_argument
    add(
        "store",
        type=local_path,
        nargs="?",
        help="store to read (default: that of a synthetic city)",
    )
    add(
        "--only",
        action="append",
        choices=PARTS,
        help="measure this part (default: all); repeatable",
    )
    text = "number of threads and of workers (default: one per core)"
    add("--threads", type=int, default=usable_cpus(), help=text)
    add(
        "--seconds",
        type=float,
        help="time to measure each rate for, in seconds (default: 1, quick 0.1)",
    )
    given = options.parse_args(arguments)
    given.only = given.only or list(PARTS)
    given.seconds = given.seconds or (0.1 if given.quick else 1.0)
    return given


def _measure(result: Result, store: Path, work: Path, sizes: LoadingSizes) -> None:
    of = result.settings
    tiles = RamTiles.load(store, split="all", progress=False)

    def throughput() -> None:
        announce("creating random tiles")
        shapes = QUICK_SHAPES if of["quick"] else OTHER_SHAPES
        every = [tiles, *(random_tiles(sizes.other_tiles, *shape) for shape in shapes)]
        sets = {f"{one.side}x{len(one.bands)}": one for one in every}
        of["sets"] = list(sets)
        measure_throughput(result, sets, epoch=sizes.epoch)

    def peers() -> None:
        announce("writing files for other loaders")
        write_files(tiles, work / "files")
        task = Task(str(work / "files"), sizes.batch_size, of["threads"], str(store))
        measure_peers(result, task)

    parts: dict[str, Callable[[], object]] = {
        "throughput": throughput,
        "residency": partial(measure_residency, result, store, tiles),
        "load": partial(measure_load, result, store),
        "memory": partial(measure_memory, result, store, tiles),
        "peers": peers,
        "tax": partial(measure_step_share, result, store, tiles, work, sizes.step_batch),
    }
    run_parts(result, parts, of["only"])


def tables(result: Result) -> list[Table]:
    """Return the tables of the report."""
    of = result.settings
    kinds = [f"{name} {kind}" for name in of.get("sets", ()) for kind in ("whole", "crops")]
    sets = {kind: f"throughput.{kind.replace(' ', '.')}" for kind in kinds}
    what = f"{of['threads']} threads, batches of {of['batch_size']}, {of['crop']}-crops with D4"
    batches = {"images/s": "rate", "over copy": "over_copy", "GB/s": "gb", "copy": "copy.gb"}
    batches |= {"p50 ms": "p50", "p99 ms": "p99", "first ms": "first"}
    storage = {"MB": "held", "tiles/s": "whole.rate", "us per tile": "whole.cpu"}
    storage |= {"crops/s": "crops.rate", "us per crop": "crops.cpu"}
    loads = {"RamTiles.load": "load.ours"} | {name: f"load.{name}" for name in ZARRS}
    workers = {
        f"{title}: {count}": f"memory.{mode}.{count}"
        for mode, (_, _, title) in MODES.items()
        for count in (*WORKERS, MANY)
    }
    peers = {"images/s": "rate", "CPU us": "cpu", "p50 ms": "p50", "p99 ms": "p99"}
    peers |= {"start s": "start", "first s": "first", "MB per worker": "memory"}
    residencies = {title: f"residency.{kind}" for kind, title in RESIDENCIES.items()}
    loaders = {entry.title: f"peers.{entry.name}" for entry in ENTRIES}
    added = {"MB added": "total", "batches alone, computed": "expected"}
    few = (*list(batches.values())[2:], *list(peers.values())[1:])
    return [
        Table(f"Throughput: {what}", sets, batches, medians=few, drawn="GB/s"),
        Table(f"Storage of tiles, {of['crop']}-crops with D4", residencies, storage),
        Table("Load, warm page cache", loads, {"GB/s": "rate"}, drawn="GB/s"),
        Table("Memory of workers", workers, added, drawn="MB added"),
        Table(
            "Other loaders, whole tiles unless noted", loaders, peers, medians=few, drawn="images/s"
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
