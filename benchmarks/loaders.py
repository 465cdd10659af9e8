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

from benchmarks.common import Result, announce, parser, run_parts, showing
from benchmarks.loading.data import QUICK, Sizes, random_tiles, synthetic_store, write_files
from benchmarks.loading.load import measure_load
from benchmarks.loading.memory import QUICK_WORKERS, WORKERS, measure_memory
from benchmarks.loading.peers import measure_peers
from benchmarks.loading.report import draw, print_tables
from benchmarks.loading.residency import measure_residency
from benchmarks.loading.tax import measure_tax
from benchmarks.loading.throughput import measure_throughput
from benchmarks.peers.base import Task
from benchmarks.tables import conclude, print_machine
from geoprep.executors import usable_cores
from loaders import RamTiles

PARTS = ("throughput", "residency", "load", "memory", "peers", "tax")
OTHER_SHAPES = ((650, 3), (512, 8))
"""Side and bands of the further tiles that windows are cut from."""
QUICK_SHAPES = ((160, 3), (128, 8))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status says only whether it ran."""
    given = _arguments(arguments)
    sizes = QUICK if given.quick else Sizes()
    result = Result("loaders", _settings(given, sizes))
    print_machine(result)
    with tempfile.TemporaryDirectory(dir=given.work, prefix="loaders-") as folder, showing():
        work = Path(folder)
        announce("drawing a city")
        store = given.store or synthetic_store(work, sizes, given.threads)
        _measure(result, store, work, given, sizes)
    return conclude(result, given, print_tables, draw)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0])
    options.add_argument(
        "store", type=Path, nargs="?", help="a store (default: a synthetic city is built)"
    )
    options.add_argument(
        "--only", action="append", choices=PARTS, help="measure this part; repeatable"
    )
    options.add_argument(
        "--threads", type=int, default=usable_cores(), help="and workers (default: one per core)"
    )
    options.add_argument("--seconds", type=float, help="of a rate (default: 1, quick 0.1)")
    options.add_argument("--work", type=Path, help="folder for scratch files (default: TMPDIR)")
    given = options.parse_args(arguments)
    given.only = given.only or list(PARTS)
    given.seconds = given.seconds or (0.1 if given.quick else 1.0)
    return given


def _settings(given: argparse.Namespace, sizes: Sizes) -> dict[str, object]:
    return {
        "store": str(given.store) if given.store else f"synthetic, {sizes.scenes} scenes",
        "parts": given.only,
        "batch_size": sizes.batch_size,
        "crop": sizes.crop,
        "threads": given.threads,
        "seconds": given.seconds,
        "repeats": given.repeats,
        "memory_workers": list(QUICK_WORKERS if given.quick else WORKERS),
        "quick": given.quick,
    }


def _measure(
    result: Result, store: Path, work: Path, given: argparse.Namespace, sizes: Sizes
) -> None:
    tiles = RamTiles.load(store, split="all", progress=False)
    result.settings |= {"tiles": len(tiles), "tile": tiles.side, "bands": list(tiles.bands)}

    def throughput() -> None:
        announce("drawing random tiles")
        shapes = QUICK_SHAPES if given.quick else OTHER_SHAPES
        others = [random_tiles(sizes.other_tiles, side, bands) for side, bands in shapes]
        sets = {_shape(each): each for each in (tiles, *others)}
        result.settings["sets"] = list(sets)
        measure_throughput(result, sets, epoch=sizes.epoch)

    def peers() -> None:
        announce("writing files for other loaders")
        folder = work / "files"
        write_files(tiles, folder)
        task = Task(folder, sizes.batch_size, given.threads, str(store.resolve()))
        measure_peers(result, task)

    parts: dict[str, Callable[[], None]] = {
        "throughput": throughput,
        "residency": partial(measure_residency, result, store, tiles),
        "load": partial(measure_load, result, store),
        "memory": partial(measure_memory, result, store, tiles),
        "peers": peers,
        "tax": partial(measure_tax, result, str(store), tiles, batch_size=sizes.step_batch),
    }
    run_parts(result, parts, given.only)


def _shape(tiles: RamTiles) -> str:
    """Return a name for tiles of one shape, ``512x3``."""
    return f"{tiles.side}x{len(tiles.bands)}"


if __name__ == "__main__":
    raise SystemExit(main())
