"""The summary of a build, read from the finished store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.build.plan import Plan
from geoprep.build.records import Outcome, ShardRecord
from geoprep.errors import GeoprepError
from geoprep.labels import mask_values
from geoprep.storage import Files
from geoprep.store import (
    SPLIT_NAMES,
    SPLITS,
    StoreReader,
    class_counts,
    road_fraction,
    scene_issues,
    usable_tiles,
    valid_fraction,
)

_LABELS_LOOKED_AT: Final = 8
_HIGH_ROAD_SHARE: Final = 0.4
"""No city has as much road: areas that are no roads were probably taken for them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a build."""

    store: str
    state: Literal["built", "resumed", "unchanged"]  # the last if it was complete before
    tiles: int
    levels: tuple[int, ...]
    store_bytes: int
    statuses: dict[str, int]
    issues: tuple[tuple[str, str, str], ...]  # id, status, reason of scenes not built as planned
    notes: dict[str, int]  # fallbacks of road attributes, with counts
    orphan_labels: tuple[str, ...]
    splits: dict[str, int]
    road_fraction: float  # of the labelled pixels, over the tiles of scenes with status ok
    valid_fraction: float  # of the pixels of all scenes, without the padding of tiles
    scenes_built: int = 0
    source_bytes: int = 0  # of pixels decoded by this run, uncompressed
    seconds: float = 0.0  # wall time of this run
    stages: dict[str, float] = field(default_factory=dict)  # seconds, summed over threads
    warnings: tuple[str, ...] = ()  # about a result that is probably not intended
    # Scene id: pixels that are nodata only because they are black; empty if nothing was built.
    black: dict[str, int] = field(default_factory=dict)
    source_copy: str | None = None  # folder of downloaded and unpacked inputs that is left
    share_name: str = "road"  # of the pixels that road_fraction counts
    class_pixels: dict[str, dict[str, int]] = field(default_factory=dict)  # split, class: pixels
    rescale: str = "none"  # rule by which source values were stretched to bytes
    stretched_scenes: int = 0
    # Band: range over these scenes of the source values that became 1, and that of 255.
    limits: dict[str, tuple[tuple[float, float], tuple[float, float]]] = field(default_factory=dict)


def summarise(
    plan: Plan,
    out: str,
    state: Literal["built", "resumed", "unchanged"],
    new: Iterable[ShardRecord],
    seconds: float,
    black: Mapping[str, int] | None = None,
) -> Summary:
    """Return the summary of a finished store, and of the run that built the shards ``new``."""
    store = StoreReader.open(out)
    scenes, tiles = store.scenes, store.tiles
    stages = Counter[str]()
    scenes_built, source_bytes = 0, 0
    for record in new:
        stages.update(record.seconds)
        scenes_built += len(record.scenes)
        source_bytes += record.source_bytes
    return Summary(
        store=out,
        state=state,
        tiles=len(tiles),
        levels=store.meta.levels,
        store_bytes=sum(Files(out).sizes.values()),
        statuses=dict(Counter(scenes.status.tolist())),
        issues=tuple(scene_issues(store)),
        notes=store.meta.build.get("notes", {}),
        orphan_labels=plan.orphan_labels,
        splits={
            name: int((tiles.split == i).sum())
            for i, name in enumerate(SPLIT_NAMES)
            if i < len(SPLITS) or (tiles.split == i).any()
        },
        road_fraction=road_fraction(store),
        valid_fraction=valid_fraction(store),
        scenes_built=scenes_built,
        source_bytes=source_bytes,
        seconds=seconds,
        stages=dict(stages),
        warnings=tuple(_warnings(plan, store)),
        black=dict(black or {}),
        share_name=store.meta.share_name,
        class_pixels=class_counts(store),
        rescale=store.meta.rescale,
        **_stretching(store),
    )


def _stretching(store: StoreReader) -> dict[str, Any]:
    """Return the fields of `Summary` on scenes whose limits are not those of bytes, 0 and 255."""
    limits = store.scenes.limits  # NaN: the scene was not rescaled
    limits = limits[(np.isfinite(limits) & (limits != (0, 255))).any(axis=(1, 2))]
    if not len(limits):
        return {}
    pairs = np.stack([limits.min(axis=0), limits.max(axis=0)], axis=-1).tolist()
    return {
        "stretched_scenes": len(limits),
        "limits": {
            band: tuple(map(tuple, pair))
            for band, pair in zip(store.meta.bands, pairs, strict=True)
        },
    }


def black_pixels(
    plan: Plan, surveyed: Mapping[int, Outcome], records: Iterable[ShardRecord]
) -> dict[str, int]:
    """Return scene id to the number of pixels that are nodata only because they are black."""
    found = {int(i): one.black for record in records for i, one in record.scenes.items()}
    found |= {index: one.black for index, one in surveyed.items() if one.black}
    return {plan.scenes[index].id: found[index] for index in sorted(found) if found[index]}


def road_share_warning(plan: Plan, roads: float, labelled: float, what: str) -> str:
    """Return a warning if road is none or too much of the labelled pixels; else an empty text.

    ``roads`` and ``labelled`` are numbers of pixels up to a common factor.
    """
    if labelled <= 0:
        return ""
    share = roads / labelled
    rasters = plan.options.mask_rule is not None
    fix = "`label_values`" if rasters else "`layer`, `where` and `areas`"
    if share > _HIGH_ROAD_SHARE:
        return (
            f"{share:.1%} of the labelled pixels of {what} are road; in cities 5 to 15 % are. "
            f"Check the labels and {fix}, and build again with `overwrite`"
        )
    if roads > 0:
        return ""
    if not rasters:
        return (
            f"no road at all: 0 % of the labelled pixels of {what} are road. Check the labels, "
            f"their CRS and {fix}, and build again with `overwrite`"
        )
    return _no_road_in_rasters(plan, what)


def class_warnings(names: Sequence[str], counts: NDArray[np.integer[Any]]) -> Iterator[str]:
    """Yield a warning if classes have no pixel in the counts of the training split."""
    absent = [name for name, count in zip(names, counts, strict=False) if not count]
    if absent:
        yield (
            f"no pixel of the training split has the class{'es' * (len(absent) > 1)} "
            f"{', '.join(absent)}: no model can learn {'them' if len(absent) > 1 else 'it'}. Check "
            "the values in `classes` and the splits"
        )


def _no_road_in_rasters(plan: Plan, what: str) -> str:
    options = plan.options
    masks = dict.fromkeys(one.label for one in plan.scenes if one.label and not one.failure)
    rule = (
        f"`label_speeds` {options.label_speeds}"
        if options.label_values is None
        else f"`label_values` {options.label_values}"
    )
    try:
        found = f": they contain {mask_values(*islice(masks, _LABELS_LOOKED_AT))}"
    except GeoprepError:  # rasters that only the workers of a cluster can read
        found = ""
    return (
        f"no road in the labels of {what} ({len(masks)} rasters) by {rule}{found}. If that is "
        "wrong, change the option and build again with `overwrite`"
    )


def _warnings(plan: Plan, store: StoreReader) -> Iterator[str]:
    if not (store.scenes.status == "ok").any():
        return
    if store.meta.has_classes:
        yield from class_warnings(store.classes.names, store.histogram_label)
        return
    tiles, usable = store.tiles, usable_tiles(store)
    valid = tiles.valid_fraction[usable].astype(float)
    roads = float((tiles.road_fraction[usable] * valid).sum())
    if warning := road_share_warning(plan, roads, float(valid.sum()), "the store"):
        yield warning
