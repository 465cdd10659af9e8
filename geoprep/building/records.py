"""What travels to a task and back: plain, picklable values, never pixels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.executors import stopped
from geoprep.grid import Grid
from geoprep.imagery import Nodata
from geoprep.plan import BuildOptions, Plan, PlannedScene, Schema
from geoprep.store import StoreMeta


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is.

    Attributes
    ----------
    stage
        ``survey`` counts pixels of images, ``build`` those of tiles at the finest level.
    pixels_kept
        How many of those done were finished by an earlier run.
    bytes_read
        Bytes of pixels decoded by this run in this stage, uncompressed.
    """

    stage: Literal["survey", "build"]
    pixels_done: int
    pixels: int
    bytes_read: int
    pixels_kept: int = 0


Report = Callable[[Progress], None]
"""Called after every task."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scene.

    Attributes
    ----------
    status, reason
        As in the scene table.
    limits
        (band, 2), or empty when nothing was rescaled.
    notes
        Counted fallbacks of its roads' attributes.
    """

    status: str = "ok"
    reason: str = ""
    limits: tuple[tuple[float, float], ...] = ()
    notes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Outcome:
        """Read back what ``dataclasses.asdict`` and JSON made of an outcome."""
        limits = tuple((float(low), float(high)) for low, high in values["limits"])
        return cls(values["status"], values["reason"], limits, dict(values["notes"]))


@dataclass(frozen=True, slots=True)
class ScenePart:
    """The tiles of one scene that lie in one shard.

    Attributes
    ----------
    index
        Row in the scene table.
    grid
        Of the source; None only where ``known`` is given.
    shape
        Height and width of the scene in pixels of the finest level.
    windows
        (row, col) of the tiles, in pixels of the finest level.
    whole
        Whether these are all tiles of the scene.
    counted
        Whether the pixels of each tile go into the store's histograms.
    known
        Limits or a fate decided beforehand, or None.
    missing
        File of bits that say where black is nodata (`geoprep.building.survey`), or None: the scene
        is read whole, or its own mask says what is nodata.
    """

    index: int
    image: str
    label: str | None
    schema: Schema
    grid: Grid | None
    shape: tuple[int, int]
    windows: tuple[tuple[int, int], ...]
    whole: bool
    counted: tuple[bool, ...]
    known: Outcome | None = None
    missing: str | None = None

    @classmethod
    def of(cls, index: int, scene: PlannedScene, low: int, high: int) -> ScenePart:
        """Return some tiles of a scene, from ``low`` to before ``high``; nothing is decided yet."""
        windows = scene.windows[low:high]
        return cls(
            index=index,
            image=scene.image,
            label=scene.label,
            schema=scene.schema,
            grid=scene.grid,
            shape=scene.shape,
            windows=windows,
            whole=len(windows) == len(scene.windows),
            counted=tuple(split == 0 for split in scene.splits[low:high]),
        )


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard of every pixel array, all for the same tiles; ``stamp`` is the plan's."""

    stamp: str
    store: str
    shard: int
    meta: StoreMeta
    options: BuildOptions
    road_file: str | None
    parts: tuple[ScenePart, ...]

    @classmethod
    def of(cls, plan: Plan, store: str, shard: int, parts: Iterable[ScenePart]) -> ShardTask:
        """Return the task of a shard of a plan."""
        return cls(
            stamp=plan.stamp,
            store=store,
            shard=shard,
            meta=plan.meta,
            options=plan.options,
            road_file=plan.road_file,
            parts=tuple(parts),
        )


class Stopped(Exception):  # noqa: N818 - no error: whoever asked has left
    """Ends a task whose result nobody waits for."""


@dataclass(slots=True)
class ShardRecord:
    """What a task did; plain values that survive a round trip through JSON.

    Attributes
    ----------
    files
        Array name, such as ``650/image``, to (XXH3-128, bytes).
    tags
        Array name to the ETag of its object, where the store is in a bucket.
    scenes
        Scene index (as text, for JSON) to its outcome.
    road_fraction, valid_fraction
        One value per tile.
    histogram_band, histogram_speed
        (band, 256) and (256) counts of this shard's training tiles.
    source_bytes
        Bytes of pixels decoded, uncompressed.
    seconds
        Stage name to seconds of one thread.
    black
        Scene index (as text) to the number of its pixels that are nodata only because they are
        black; scenes in several shards are left to the survey.
    """

    shard: int
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    scenes: dict[str, Outcome] = field(default_factory=dict)
    road_fraction: list[float] = field(default_factory=list)
    valid_fraction: list[float] = field(default_factory=list)
    histogram_band: list[list[int]] = field(default_factory=list)
    histogram_speed: list[int] = field(default_factory=list)
    source_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    black: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage, unless nobody waits for the record any more."""
        if stopped():
            raise Stopped
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; unlike ``dataclasses.asdict`` it copies no long lists."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return values | {"scenes": {index: asdict(one) for index, one in self.scenes.items()}}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardRecord:
        """Read back what :meth:`to_json` and JSON made of a record."""
        record = cls(**values)
        record.files = {name: (str(d), int(n)) for name, (d, n) in record.files.items()}
        record.scenes = {index: Outcome.from_json(one) for index, one in values["scenes"].items()}
        return record


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """Some rows of a scene to be looked at before its shards are built.

    Attributes
    ----------
    index
        Row in the scene table.
    nodata
        The value that marks nodata whatever the image says, or None.
    rows
        The first, and the one after the last; None for a scene that is looked at whole.
    missing
        File of bits, a row per row of the scene, for where it is black; None where that is known
        at once.
    failure
        Why the scene has failed already: nothing is read then.
    """

    index: int
    image: str
    bands: tuple[int, ...]
    nodata: Nodata
    rows: tuple[int, int] | None
    missing: str | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class SurveyRecord:
    """What was found in these rows.

    Attributes
    ----------
    failure
        Why they cannot be read, or empty.
    pixels, valid
        How many there are, and how many hold imagery or are black where that is not yet known.
    black
        How many are black and perhaps nodata, written to the task's file.
    bins
        How many values, or bins of wide sources, there can be.
    histogram
        Per band the values that occur and how often: int64 (value) and int64 (value).
    """

    task: SurveyTask
    failure: str = ""
    pixels: int = 0
    valid: int = 0
    black: int = 0
    source_bytes: int = 0
    bins: int = 0
    histogram: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] = ()
