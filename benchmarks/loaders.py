"""Measure throughput and memory of the data loaders, compared with other loaders.

    python -m benchmarks.loaders [--store STORE] [--quick] [--json FILE] [--plot FILE]

All parts use the tiles of one store: the given one, or that of a synthetic city (quick: random
tiles of 512 x 512 x 3). The baselines are
copying the same bytes, zarrs alone, a common Dataset, other loaders (`make bench-peers` installs
them), and the time of a training step. With --quick: memory per worker and images per second, in a
minute; of a given store up to 64 tiles, and advice for it.
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
from benchmarks.loading.batches import (
    BANDS,
    SHARES,
    SMALL,
    measure_batches,
    measure_crops,
    measure_gil,
)
from benchmarks.loading.data import (
    QUICK,
    QUICK_TILES,
    LoadingSizes,
    load_tiles,
    random_tiles,
    some_tiles,
    synthetic_store,
    write_files,
)
from benchmarks.loading.load_rate import ZARRS, measure_load
from benchmarks.loading.other_loaders import ENTRIES, QUICK_ENTRIES, measure_peers
from benchmarks.loading.throughput import (
    RESIDENCIES,
    drain,
    measure_residency,
    measure_step_share,
    measure_throughput,
)
from benchmarks.loading.worker_memory import MODES, WORKERS, measure_memory
from benchmarks.peers.task import Task
from benchmarks.tables import Table, conclude, print_machine
from geoprep.cpus import usable_cpus
from loaders import BatchLoader, RamTiles, StreamTiles, available_memory

PARTS = ("memory", "peers", "crops", "batches", "gil", "throughput", "residency", "load", "tax")
QUICK_PARTS = ("memory", "peers")
OTHER_SHAPES = ((650, 3), (512, 8))
"""Side and bands of further tiles for the part throughput."""
_FILLED = 0.8
"""Largest share of the available memory that tiles should take."""
_NEARLY, _TRY_SECONDS = 0.9, 0.1
QUICK_SHAPES = ((320, 3), (256, 8))


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 if it ran, even if bounds were missed."""
    given = _arguments(arguments)
    sizes = QUICK if given.quick else LoadingSizes()
    result = Result("loaders", vars(given) | {"batch_size": sizes.batch_size, "crop": sizes.crop})
    print_machine(result)
    with scratch_folder(given.work, "loaders") as folder, status:
        work = Path(folder)
        store = given.store
        if store is None and not set(given.only) <= _storeless(quick=given.quick):
            announce("creating a city")
            store = synthetic_store(work, sizes, given.threads)
        _measure(result, store, work, sizes)
    return conclude(result, given, tables(result))


def _storeless(*, quick: bool) -> set[str]:
    """Return the parts that need no store: those of the quick run take random tiles."""
    return {"crops", "batches", "gil", *(QUICK_PARTS if quick else ())}


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    add = options.add_argument
    text = "store to read (default: that of a synthetic city)"
    add("--store", type=local_path, metavar="STORE", help=text)
    add(
        "--only",
        action="append",
        choices=PARTS,
        help="measure this part (default: all; quick: memory, peers); repeatable",
    )
    text = "number of threads and of workers (default: one per core)"
    add("--threads", type=int, default=usable_cpus(), help=text)
    add(
        "--seconds",
        type=float,
        help="time to measure each rate for, in seconds (default: 1, quick 0.25)",
    )
    given = options.parse_args(arguments)
    given.only = given.only or list(QUICK_PARTS if given.quick else PARTS)
    given.seconds = given.seconds or (0.25 if given.quick else 1.0)
    if given.quick:
        given.repeats = min(given.repeats, 3)
    return given


def _measure(result: Result, store: Path | None, work: Path, sizes: LoadingSizes) -> None:
    of = result.settings
    files = work / "files"
    if store is None:
        tiles, store = random_tiles(QUICK_TILES, sizes.tile, 3), files
    else:
        tiles = some_tiles(store, QUICK_TILES) if of["quick"] else load_tiles(store)
    of["crop"] = min(sizes.crop, max(1, tiles.side // 2))
    source = files if of["quick"] else store
    if of["quick"]:
        write_files(tiles, files, tiffs=False)

    def throughput() -> None:
        announce("creating random tiles")
        shapes = QUICK_SHAPES if of["quick"] else OTHER_SHAPES
        every = [tiles, *(random_tiles(sizes.other_tiles, *shape) for shape in shapes)]
        sets = {f"{one.side}x{len(one.bands)}": one for one in every}
        of["sets"] = list(sets)
        measure_throughput(result, sets, epoch=sizes.epoch)

    def peers() -> None:
        announce("writing files for other loaders")
        if not of["quick"]:
            write_files(tiles, files)
        task = Task(str(files), sizes.batch_size, of["threads"], str(source))
        measure_peers(result, task, QUICK_ENTRIES if of["quick"] else ENTRIES)

    parts: dict[str, Callable[[], object]] = {
        "memory": partial(measure_memory, result, source, tiles),
        "peers": peers,
        "crops": partial(measure_crops, result, sizes.other_tiles),
        "batches": partial(measure_batches, result),
        "gil": partial(measure_gil, result, sizes.other_tiles),
        "throughput": throughput,
        "residency": partial(measure_residency, result, store, tiles),
        "load": partial(measure_load, result, store),
        "tax": partial(measure_step_share, result, store, tiles, work, sizes.step_batch),
    }
    run_parts(result, parts, of["only"])
    if of["store"] is not None:
        result.notes.append(advice(store, tiles, of["threads"], of["crop"]))


def advice(store: Path, tiles: RamTiles, threads: int, crop: int) -> str:
    """Return how to load a store on this machine, in one line.

    Parameters
    ----------
    store
        Path of the store.
    tiles
        Some of its tiles.
    threads
        Most threads to try.
    crop
        Side of crops in pixels.
    """
    announce("advice")
    nbytes = StreamTiles.open(store, "all").nbytes
    free = available_memory().nbytes
    if nbytes < _FILLED * free:
        residency = "ram"
    else:
        stored = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        residency = "compressed" if stored < _FILLED * free else "stream"
    rates = {}
    for count in (n for n in (1, 2, 4, 8) if n <= threads):
        for size in (4, 8, 16, 32):
            loader = BatchLoader(
                tiles, size, crop=crop, augment="d4", crops_per_tile=64, threads=count
            )
            rates[count, size] = drain(loader, _TRY_SECONDS).rate
    best = max(rates.values())
    # The first that is nearly as fast: fewer threads before smaller batches.
    count, size = next(case for case, rate in rates.items() if rate >= _NEARLY * best)
    return (
        f"Advice for {store.name}: residency {residency} ({nbytes / 1e9:.1f} GB of tiles, "
        f"{free / 1e9:.1f} GB of memory available), {count} loader threads, batches of {size} or "
        f"more: {rates[count, size]:,.0f} crops of {crop} per second, of {best:,.0f} at best."
    )


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
        text: f"memory.{mode}.{figure}"
        for mode, (_, _, title) in MODES.items()
        for text, figure in ((title, "total"), (f"  {mode}, computed", "expected"))
    }
    counts = {str(count): str(count) for count in WORKERS}
    peers = {"images/s": "rate", "CPU us": "cpu", "p50 ms": "p50", "p99 ms": "p99"}
    peers |= {"start s": "start", "first s": "first", "MB per worker": "memory"}
    residencies = {title: f"residency.{kind}" for kind, title in RESIDENCIES.items()}
    loaders = {entry.title: f"peers.{entry.name}" for entry in ENTRIES}
    few = (*list(batches.values())[2:], *list(peers.values())[1:])
    bands = {str(count): f"crops.{count}" for count in BANDS}
    small = {f"{side} x {side}, {n} per batch": f"batches.{side}x{n}" for side, n in SMALL}
    stacks = {"tiles/s": "rate", "torch.stack, tiles/s": "stack", "CPU us per tile": "cpu"}
    stacks |= {"torch.stack, CPU us": "stack_cpu", "rate over torch.stack": "over_stack"}
    held = {f"{share} %": f"gil.{share}" for share in SHARES}
    beside = {"crops/s, 16,000 asked for": "rate", "4,000 asked for": "paced"}
    beside |= {"of these, % of steps that waited": "waited"}
    return [
        Table(
            f"Memory per number of workers, MB, batches of {of['batch_size']} whole tiles",
            workers,
            counts,
            head="workers:",
            drawn="4",
            reading="Read a row from left to right: MB that loading adds to the process and its "
            "workers, with one batch ready per worker. 'Computed' is the size of those batches "
            "alone. The tiles themselves are not counted.",
        ),
        Table(
            f"Images per second, {of['threads']} workers, whole tiles unless noted",
            loaders,
            peers,
            medians=few,
            drawn="images/s",
            reading="Read images/s first: if it is above ten times the images per second of your "
            "training step, a faster loader changes nothing. CPU us is what one image takes from "
            "your model on the same processor; p99 is the longest wait in a hundred batches.",
        ),
        Table(f"Throughput: {what}", sets, batches, medians=few, drawn="GB/s"),
        Table(f"Storage of tiles, {of['crop']}-crops with D4", residencies, storage),
        Table("Load, warm page cache", loads, {"GB/s": "rate"}, drawn="GB/s"),
        Table(
            f"Crops of {of['crop']} with D4, tiles of 512",
            bands,
            {"crops/s": "rate", "GB/s": "gb", "CPU us per crop": "cpu"},
            head="bands",
        ),
        Table("Whole tiles of 3 bands", small, stacks),
        Table("Crops with D4 beside a loop that holds the GIL", held, beside, head="GIL held"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
