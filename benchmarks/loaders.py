"""How fast tiles become batches, what that holds in memory, and next to what: one run, in turns.

    python -m benchmarks.loaders [STORE] [--quick] [--json FILE] [--plot FILE]

Everything is measured on the tiles of one store: one that is given, or else a synthetic city drawn
and built for the purpose. Next to it stand copying the same bytes, zarrs alone, the usual Dataset,
other loaders (those that `make bench-peers` installs), and the training step that a loader feeds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common import Result, announce, parser, run_parts, status
from benchmarks.loading.data import QUICK, Sizes, random_tiles, synthetic_store, write_files
from benchmarks.loading.load import ZARRS, measure_load
from benchmarks.loading.memory import MANY, MODES, WORKERS, measure_memory
from benchmarks.loading.others import ENTRIES, measure_peers
from benchmarks.loading.throughput import (
    RESIDENCIES,
    measure_residency,
    measure_tax,
    measure_throughput,
)
from benchmarks.peers.task import Task
from benchmarks.report import Table, conclude, print_machine
from geoprep.cpus import usable_cpus
from loaders import RamTiles

PARTS = ("throughput", "residency", "load", "memory", "peers", "tax")
OTHER_SHAPES = ((650, 3), (512, 8))
"""Side and bands of the further tiles that windows are cut from."""
QUICK_SHAPES = ((160, 3), (128, 8))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status says only whether it ran."""
    given = _arguments(arguments)
    sizes = QUICK if given.quick else Sizes()
    result = Result("loaders", vars(given) | {"batch_size": sizes.batch_size, "crop": sizes.crop})
    print_machine(result)
    with tempfile.TemporaryDirectory(dir=given.work, prefix="loaders-") as folder, status:
        work = Path(folder)
        announce("drawing a city")
        store = given.store or synthetic_store(work, sizes, given.threads)
        _measure(result, store.resolve(), work, sizes)
    return conclude(result, given, tables(result))


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    add = options.add_argument
    add("store", type=Path, nargs="?", help="a store (default: a synthetic city is built)")
    add("--only", action="append", choices=PARTS, help="measure this part; repeatable")
    text = "and workers (default: one per core)"
    add("--threads", type=int, default=usable_cpus(), help=text)
    add("--seconds", type=float, help="of a rate (default: 1, quick 0.1)")
    given = options.parse_args(arguments)
    given.only = given.only or list(PARTS)
    given.seconds = given.seconds or (0.1 if given.quick else 1.0)
    return given


def _measure(result: Result, store: Path, work: Path, sizes: Sizes) -> None:
    of = result.settings
    tiles = RamTiles.load(store, split="all", progress=False)

    def throughput() -> None:
        announce("drawing random tiles")
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
        "tax": partial(measure_tax, result, store, tiles, work, sizes.step_batch),
    }
    run_parts(result, parts, of["only"])


def tables(result: Result) -> list[Table]:
    """Return the tables of what was measured."""
    of = result.settings
    kinds = [f"{name} {kind}" for name in of.get("sets", ()) for kind in ("whole", "crops")]
    sets = {kind: f"throughput.{kind.replace(' ', '.')}" for kind in kinds}
    what = f"{of['threads']} threads, batches of {of['batch_size']}, {of['crop']}-crops with D4"
    batches = {"images/s": "rate", "of the copy": "over_copy", "GB/s": "gb", "copy": "copy.gb"}
    batches |= {"p50 ms": "p50", "p99 ms": "p99", "first ms": "first"}
    homes = {"MB": "held", "tiles/s": "whole.rate", "us per tile": "whole.cpu"}
    homes |= {"crops/s": "crops.rate", "us per crop": "crops.cpu"}
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
    added = {"MB added": "total", "their batches alone, arithmetic": "expected"}
    few = (*list(batches.values())[2:], *list(peers.values())[1:])
    return [
        Table(f"Throughput: {what}", sets, batches, medians=few, drawn="GB/s"),
        Table(f"Where tiles live, {of['crop']}-crops with D4", residencies, homes),
        Table("Load, warm page cache", loads, {"GB/s": "rate"}, drawn="GB/s"),
        Table("Memory of workers", workers, added, drawn="MB added"),
        Table("Peers, whole tiles unless said", loaders, peers, medians=few, drawn="images/s"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
