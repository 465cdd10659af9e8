"""Tasks and their records: plain, picklable values without pixels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.executors import stopped
from geoprep.imagery import Nodata
from geoprep.plan import TRAIN, BuildOptions, Plan, PlannedScene
from geoprep.store import StoreMeta


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a build.

    Attributes
    ----------
    stage
        ``survey`` counts pixels of images, ``build`` pixels of tiles at the finest level.
    pixels_done, pixels
        Pixels that are done, and all pixels of the stage.
    bytes_read
        Bytes of pixels decoded by this run in this stage, uncompressed.
    pixels_kept
        Pixels of those done that an earlier run finished.
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
    """Result of building a scene.

    Attributes
    ----------
    status, reason
        As in the store's scene table.
    limits
        (band, 2) source values that become 1 and 255; empty without rescaling.
    notes
        Fallbacks of road attributes, with counts.
    """

    status: str = "ok"
    reason: str = ""
    limits: tuple[tuple[float, float], ...] = ()
    notes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Outcome:
        """Return an outcome from the JSON form of ``dataclasses.asdict``."""
        limits = tuple((float(low), float(high)) for low, high in values["limits"])
        return cls(values["status"], values["reason"], limits, dict(values["notes"]))


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Result of the survey of a scene.

    Attributes
    ----------
    outcome
        Limits, or the status of a scene that is not built.
    nodata_file
        File of bits for black pixels that are nodata (`geoprep.building.nodata_bits`); None if
        every window shows that by itself.
    black
        Number of pixels that are nodata only because they are black.
    """

    outcome: Outcome
    nodata_file: str | None = None
    black: int = 0


@dataclass(frozen=True, slots=True)
class ScenePart:
    """The tiles of one scene in one shard.

    Attributes
    ----------
    index
        Row in the scene table.
    scene
        The scene with these tiles only.
    whole
        Whether these are all tiles of the scene.
    surveyed
        Result of the scene's survey; None if it needs none.
    """

    index: int
    scene: PlannedScene
    whole: bool
    surveyed: Surveyed | None = None

    @classmethod
    def of(cls, index: int, scene: PlannedScene, low: int, high: int) -> ScenePart:
        """Return the tiles of a scene from ``low`` to before ``high``."""
        part = scene.tiles(low, high)
        return cls(index, part, whole=len(part.windows) == len(scene.windows))

    @property
    def counted(self) -> tuple[bool, ...]:
        """Whether the pixels of each tile go into the store's histograms: training tiles."""
        return tuple(split == TRAIN for split in self.scene.splits)


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard of every pixel array, all for the same tiles."""

    fingerprint: str
    store: str
    shard: int
    meta: StoreMeta
    options: BuildOptions
    road_file: str | None
    parts: tuple[ScenePart, ...]

    @classmethod
    def of(cls, plan: Plan, store: str, shard: int, parts: Iterable[ScenePart]) -> ShardTask:
        """Return the task for a shard of a plan."""
        return cls(
            fingerprint=plan.fingerprint,
            store=store,
            shard=shard,
            meta=plan.meta,
            options=plan.options,
            road_file=plan.road_file,
            parts=tuple(parts),
        )


class TaskStopped(Exception):  # noqa: N818 - no error: the result is no longer needed
    """Ends a task whose result is no longer needed."""


@dataclass(slots=True)
class ShardRecord:
    """Record of a finished shard; plain values that survive a round trip through JSON.

    Attributes
    ----------
    files
        Array name, such as ``650/image``, to (XXH3-128, bytes).
    tags
        Array name to the ETag of its object, for a store in a bucket.
    scenes
        Scene index (as text, for JSON) to its outcome.
    road_fraction, valid_fraction
        One value per tile.
    histogram_band, histogram_speed
        (band, 256) and (256) counts of this shard's training tiles; the latter by label byte.
    class_pixels
        Pixels per class of every tile; empty for speeds.
    label_notes
        Remark on label pixels -> number of pixels, over the parts of scenes in this shard.
    source_bytes
        Bytes of pixels decoded, uncompressed.
    seconds
        Stage name to seconds of one thread.
    black
        Scene index (as text) to the number of its pixels that are nodata only because they are
        black, of scenes in a single shard.
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
    class_pixels: list[list[int]] = field(default_factory=list)
    label_notes: dict[str, int] = field(default_factory=dict)

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
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return values | {"scenes": {index: asdict(one) for index, one in self.scenes.items()}}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardRecord:
        """Return a record from its JSON form."""
        record = cls(**values)
        record.files = {name: (str(d), int(n)) for name, (d, n) in record.files.items()}
        record.scenes = {index: Outcome.from_json(one) for index, one in values["scenes"].items()}
        return record


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """Some rows of a scene to survey before its shards are built.

    Attributes
    ----------
    index
        Row in the scene table.
    nodata
        Value that is nodata instead of what the image defines; None for the image's definition.
    rows
        First row, and the one after the last; None for all rows at once.
    nodata_file
        File of bits, one row per row of the scene, for its black pixels; None if the rows are
        complete and need no file.
    failure
        Why the scene has failed already; nothing is read then.
    """

    index: int
    image: str
    bands: tuple[int, ...]
    nodata: Nodata
    rows: tuple[int, int] | None
    nodata_file: str | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class SurveyRecord:
    """Result of the survey of some rows.

    Attributes
    ----------
    failure
        Why they cannot be read; empty if they can.
    pixels, valid
        All pixels, and those with imagery; black ones of undecided meaning count as imagery.
    black
        Black pixels that may be nodata, written to the task's file.
    bins
        Number of possible values, or of bins for wide data types.
    histogram
        Per band the values that occur and their counts: int64 (value) and int64 (value).
    """

    task: SurveyTask
    failure: str = ""
    pixels: int = 0
    valid: int = 0
    black: int = 0
    source_bytes: int = 0
    bins: int = 0
    histogram: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] = ()
