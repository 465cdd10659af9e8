"""All parts, each with as many tries as the scale says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.faults import flipped, killed, mutated, objects, places, together
from benchmarks.faults.jobs import World
from benchmarks.faults.report import Row

SCENES = 6

PARTS: dict[str, tuple[Callable[[World, int, int], Iterator[Row]], int]] = {
    "killed": (killed.rows, 50),
    "places": (places.rows, 50),
    "mutated": (mutated.rows, 2000),
    "flipped": (flipped.rows, 1000),
    "objects": (objects.rows, 20),
    "together": (together.rows, 10),
}
"""What runs a part, and how often it tries each of its faults in a whole campaign."""


def campaign(
    folder: Path, seed: int, scale: float, names: Sequence[str], jobs: int = 1
) -> Iterator[Row]:
    """Yield the rows of some parts in order, as they are done; ``jobs`` parts at a time."""
    world = World.make(folder, SCENES)
    if jobs == 1:
        for name in names:
            yield from _rows(name, world, seed, scale)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        coming = [pool.submit(_all_rows, name, world, seed, scale) for name in names]
        for part in coming:
            yield from part.result()


def _rows(name: str, world: World, seed: int, scale: float) -> Iterator[Row]:
    rows, tries = PARTS[name]
    return rows(world, seed, max(1, round(tries * scale)))


def _all_rows(name: str, world: World, seed: int, scale: float) -> list[Row]:
    return [*_rows(name, world, seed, scale)]
