"""All parts, each with as many tries as the scale says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


def campaign(folder: Path, seed: int, scale: float, names: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of some parts as they are done."""
    world = World.make(folder, SCENES)
    for name in names:
        rows, tries = PARTS[name]
        yield from rows(world, seed, max(1, round(tries * scale)))
