"""Where tiles live: as pixels in memory, as stored in memory, in the store; what each costs.

Files come from a warm page cache, so a stream is as fast here as it can be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.common import Result, announce, interleave
from benchmarks.loading.throughput import Rate, drain
from loaders import BatchLoader, RamTiles, StreamTiles

RESIDENCIES = {"ram": "RamTiles", "compressed": 'RamTiles, keep="compressed"'}
RESIDENCIES |= {"stream": "StreamTiles"}
_CROPS = 4
"""Windows per tile and epoch, as `training.fit` has it by default."""
_LEAST = 32
"""Tiles that a stream's memory has room for at least."""

Tiles = RamTiles | StreamTiles


def open_tiles(kind: str, store: Path, limit: int) -> Tiles:
    """Return the tiles of a store, kept in one of the ways of `RESIDENCIES`."""
    if kind == "stream":
        return StreamTiles.open(store, "all", ram_limit=limit)
    keep = "compressed" if kind == "compressed" else "pixels"
    return RamTiles.load(store, "all", keep=keep, progress=False)  # type: ignore[arg-type]  # one of its two words


def measure_residency(result: Result, store: Path, pixels: RamTiles) -> None:
    """Record memory, seconds to get ready, and the rate of whole tiles and of windows.

    Parameters
    ----------
    store
        Where the tiles are.
    pixels
        All of them in memory.
    """
    of = result.settings
    batch = of["batch_size"] * pixels.tile_bytes
    limit = max(pixels.nbytes // 4, _LEAST * pixels.tile_bytes) + 8 * batch
    cases: dict[str, Callable[[], Rate]] = {}
    for kind in RESIDENCIES:
        announce(f"opening: {kind}")
        start = time.perf_counter()
        tiles = open_tiles(kind, store, limit)
        result.add(f"residency.{kind}.ready", "s", [time.perf_counter() - start])
        held = tiles.handle.nbytes if isinstance(tiles, RamTiles) else tiles.ram_limit
        result.add(f"residency.{kind}.held", "MB", [held / 1e6])
        make = partial(BatchLoader, tiles, of["batch_size"], threads=of["threads"])
        loaders = {
            "whole": make(),
            "crops": make(crop=of["crop"], augment="d4", crops_per_tile=_CROPS),
        }
        for name, loader in loaders.items():
            cases[f"{kind}.{name}"] = partial(drain, loader, of["seconds"])
    for name, rates in interleave(cases, of["repeats"]).items():
        result.add(f"residency.{name}.rate", "images/s", [rate.rate for rate in rates])
        cpu = [rate.cpu_seconds / rate.samples * 1e6 for rate in rates]
        result.add(f"residency.{name}.cpu", "us of one core per image", cpu)
