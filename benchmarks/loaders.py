"""Measure throughput and memory of the data loaders, compared with other loaders.

    python -m benchmarks.loaders [--store STORE] [--quick] [--json FILE]
    python -m benchmarks.loaders --write-page docs/performance/loaders.md

All parts use the tiles of one store: the given one, or that of a synthetic city (quick: random
tiles of 512 x 512 x 3). The baselines are copying the same bytes, a common Dataset, and other
loaders (`make bench-peers` installs them). `training.fit --profile` shows the share of loading in a
training step.

With --quick: memory per worker and images per second, in a minute; of a given store up to 64 tiles,
and advice for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import CommonOptions, Result, announce, command, run_parts, some_of
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
from benchmarks.loading.device_loop import LOOPS, QUICK_LOOPS, measure_loop
from benchmarks.loading.other_loaders import ENTRIES, QUICK_ENTRIES, measure_peers
from benchmarks.loading.peer_task import Task
from benchmarks.loading.rates import RESIDENCIES, drain, measure_residency
from benchmarks.loading.worker_memory import MODES, WORKERS, measure_memory
from benchmarks.tables import Table, conclude, measured, write_page
from geoprep.cpus import usable_cpus
from geoprep.options import option
from geoprep.texts import counted
from loaders import BatchLoader, RamTiles, StreamTiles, available_memory

PARTS = ("memory", "peers", "loop", "residency")
QUICK_PARTS = ("memory", "peers", "loop")
_FILLED = 0.8
"""Largest share of the available memory that tiles should take."""
_NEARLY, _TRY_SECONDS = 0.9, 0.1


@dataclass(frozen=True, kw_only=True)
class LoadersOptions(CommonOptions):
    """Options: of `benchmarks.loaders`."""

    store: Path | None = option(None, "Store to read. Default: that of a synthetic city.", "STORE")
    only: tuple[str, ...] | None = some_of(
        PARTS, "Measure these parts", "all; quick: memory, peers, loop"
    )
    threads: int | None = option(
        None, "Number of threads and of workers. Default: one per core.", "N", least=1
    )
    seconds: float | None = option(
        None,
        "Time to measure each rate for, in seconds. Default: 1, quick 0.25.",
        "SECONDS",
        above=0,
    )
    write_page: Path | None = option(
        None, "Write the tables to this page of the documentation, in place of its figures.", "FILE"
    )


@command(LoadersOptions)
def main(given: LoadersOptions) -> int:
    """Run the benchmark; return 0 if it ran, even if bounds were missed."""
    sizes = QUICK if given.quick else LoadingSizes()
    only = given.only or (QUICK_PARTS if given.quick else PARTS)
    settings = {
        "batch_size": sizes.batch_size,
        "crop": sizes.crop,
        "only": only,
        "threads": given.threads or usable_cpus(),
        "seconds": given.seconds or (0.25 if given.quick else 1.0),
        "repeats": min(given.repeats, 2) if given.quick else given.repeats,
    }
    with measured("loaders", given, **settings) as (result, work):
        store = given.store
        # Parts of the quick run take random tiles.
        if store is None and not (given.quick and set(only) <= {*QUICK_PARTS}):
            store = synthetic_store(work, sizes, result.settings["threads"])
        _measure(result, store, work, sizes)
    if given.write_page:
        write_page(given.write_page, result, tables(result), "figures", "Figures", "## Limits\n")
    return conclude(result, given, tables(result))


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

    elif {"peers", "loop"} & {*of["only"]}:
        announce("writing files for other loaders")
        write_files(tiles, files)
    task = Task(str(files), sizes.batch_size, of["threads"], str(source))
    entries, loops = (QUICK_ENTRIES, QUICK_LOOPS) if of["quick"] else (ENTRIES, [*LOOPS])

    parts: dict[str, Callable[[], object]] = {
        "memory": partial(measure_memory, result, source),
        "peers": partial(measure_peers, result, task, entries),
        "loop": partial(measure_loop, result, task, loops),
        "residency": partial(measure_residency, result, store, tiles),
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
        f"{free / 1e9:.1f} GB of memory available), {counted(count, 'loader thread')}, "
        f"batches of {size} or more: {rates[count, size]:,.0f} crops of {crop} per second, "
        f"of {best:,.0f} at best."
    )


def tables(result: Result) -> list[Table]:
    """Return the tables of the report."""
    of = result.settings
    storage = {"MB": "held", "tiles/s": "whole.rate", "us per tile": "whole.cpu"}
    storage |= {"crops/s": "crops.rate", "us per crop": "crops.cpu"}
    workers = {title: f"memory.{mode}.total" for mode, (_, _, title) in MODES.items()}
    best = {"whole tiles": "peers.ours", "crops + D4": "peers.ours_crops"}
    counts = {str(count): str(count) for count in WORKERS}
    peers = {"images/s": "rate", "CPU us": "cpu", "p50 ms": "p50", "p99 ms": "p99"}
    peers |= {"start s": "start", "first s": "first", "MB per worker": "memory"}
    loop = {"batches/s": "rate", "batches per CPU s": "cpu"}
    loop |= {"MB to the device": "sent", "MB of memory": "memory"}
    residencies = {title: f"residency.{kind}" for kind, title in RESIDENCIES.items()}
    loaders = {entry.title: f"peers.{entry.name}" for entry in ENTRIES}
    crops = f"{of['crop']}-crops with D4"
    return [
        Table(
            f"Memory per number of workers, MB, batches of {of['batch_size']} whole tiles",
            workers,
            counts,
            head="workers",
        ),
        Table(
            f"Images per second, {of['threads']} workers, whole tiles unless noted",
            loaders,
            peers,
            medians=list(peers.values())[1:],
        ),
        Table("Rate of BatchLoader over that of the fastest other one", best, {"": "over_best"}),
        Table(
            f"Loop over {of['batch_size']} whole tiles a batch, with targets on {of.get('device')}",
            {title: f"loop.{name}" for name, title in LOOPS.items()},
            loop,
            medians=[*loop.values()][2:],
        ),
        Table(f"Storage of tiles, {crops}", residencies, storage),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
