"""Tasks and their records: plain, picklable values without pixels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from geoprep.building.options import BuildOptions
from geoprep.building.scene import Planned
from geoprep.executors.threads import stopped
from geoprep.store.schema import StoreMeta


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of building or surveying a scene."""

    status: str = "ok"  # status and reason as in the store's scene table
    reason: str = ""
    limits: Sequence[Sequence[float]] = ()  # of each band; empty without rescaling
    notes: dict[str, int] = field(default_factory=dict)  # remarks on labels, with counts
    black: int = 0  # pixels that are nodata only because they are black
    mask_file: str | None = None  # of a surveyed scene: its validity; None: decided when read

    @property
    def has_pixels(self) -> bool:
        """Whether the scene is in the store."""
        return self.status in ("ok", "unlabelled")


@dataclass(frozen=True, slots=True)
class SceneTiles:
    """Some tiles of a scene: those in one shard."""

    index: int  # row in the scene table
    scene: Planned  # without its splits
    first: int  # of the scene's tiles
    stop: int  # after the last
    splits: tuple[int, ...]  # of these tiles
    surveyed: Outcome | None = None  # None if the scene needs no survey

    @classmethod
    def of(
        cls, index: int, scene: Planned, shard: tuple[int, int], surveyed: Outcome | None
    ) -> SceneTiles:
        """Return the tiles of a scene in a shard, which is given by its first tile and its end."""
        first = max(shard[0] - scene.first_tile, 0)
        stop = min(shard[1] - scene.first_tile, len(scene.windows))
        splits, scene = scene.splits[first:stop], replace(scene, splits=())
        return cls(index, scene, first, stop, splits, surveyed)

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def are_all(self) -> bool:
        """Whether these are all tiles of the scene."""
        return len(self) == len(self.scene.windows)


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard of every pixel array, all for the same tiles."""

    fingerprint: str
    store: str
    shard: int
    meta: StoreMeta
    options: BuildOptions
    shared_label: str | None
    scenes: tuple[SceneTiles, ...]


class TaskStopped(Exception):  # noqa: N818 - no error: the result is no longer needed
    """Ends a task whose result is no longer needed."""


@dataclass(slots=True)
class ShardRecord:
    """Record of a finished shard; plain values that survive a round trip through JSON."""

    shard: int
    files: dict[str, Sequence[Any]] = field(default_factory=dict)  # array: XXH3-128, bytes
    tags: dict[str, str] = field(default_factory=dict)  # array: ETag, for a store in a bucket
    scenes: dict[str, Outcome] = field(default_factory=dict)  # by index, as text for JSON
    road_fraction: list[float] = field(default_factory=list)  # one per tile
    valid_fraction: list[float] = field(default_factory=list)
    shades: list[int] = field(default_factory=list)  # per tile, values of the band with most
    values: int = 0  # valid values of all bands at the finest level
    ends: int = 0  # those of them that are 1 or 255
    histogram_band: list[list[int]] = field(default_factory=list)  # (band, 256), training tiles
    histogram_speed: list[int] = field(default_factory=list)  # (256), by label byte
    source_bytes: int = 0  # of pixels decoded, uncompressed
    seconds: dict[str, float] = field(default_factory=dict)  # by stage, of one thread
    class_pixels: list[list[int]] = field(default_factory=list)  # per tile; empty for speeds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to a stage; stop if the record is no longer needed."""
        if stopped():
            raise TaskStopped
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; long lists are not copied, unlike by ``dataclasses.asdict``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "scenes": {index: asdict(outcome) for index, outcome in self.scenes.items()}
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardRecord:
        """Return a record from its JSON form."""
        scenes = {index: Outcome(**outcome) for index, outcome in values["scenes"].items()}
        return cls(**values | {"scenes": scenes})
