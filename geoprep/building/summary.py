"""Summaries: of a plan, for a dry run, and of a build, read from the finished store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.building.plan import Plan
from geoprep.building.records import Outcome, ShardRecord
from geoprep.building.request import Sources
from geoprep.building.scene import Planned
from geoprep.errors import GeoprepError
from geoprep.executors.threads import Executor
from geoprep.grid import SceneWindow
from geoprep.imagery.rescale import MOST_AT_ENDS
from geoprep.labels.mask_files import read_mask, unlabelled_pixels
from geoprep.storage.addresses import is_bucket, is_remote
from geoprep.storage.failures import free_bytes
from geoprep.storage.places import Files
from geoprep.store.classes import BACKGROUND_NAME
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import (
    class_counts,
    road_fraction,
    scene_issues,
    usable_tiles,
    valid_fraction,
)
from geoprep.store.schema import SPLIT_NAMES, SPLITS
from geoprep.texts import counted
from geoprep.views.stores import Summary

_LABELS_LOOKED_AT: Final = 8
_ONE_PIXEL: Final = SceneWindow(0, 0, 1, 1)
_HIGH_ROAD_SHARE: Final = 0.4
"""No city has as much road: areas that are no roads were probably taken for them."""
_FLAT: Final = 0.33
"""A scene has little contrast below this share of the median scene's."""
_FEW_SHADES: Final = 8
"""A scene with fewer values than this after rescaling is flat."""
_ONE_CLASS: Final = 0.95
"""Share of a class above which a scene is nearly of that class."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The store that a build would make, by the headers of its images."""

    scenes: int = 0
    tiles: int = 0
    levels: tuple[int, ...] = ()
    splits: dict[str, int] = field(default_factory=dict)  # tiles
    usable_tiles: int = 0  # of labelled scenes, which loaders use unless they are nodata
    memory_bytes: dict[str, int] = field(default_factory=dict)  # of the usable tiles, by level
    raw_bytes: int = 0  # of all tiles and levels; on the disk they are compressed
    free_bytes: int | None = None  # on the disk of the store; None for a bucket
    replaced_bytes: int = 0  # of a store that stays until the new one is complete
    unlabelled: int | None = 0  # scenes without a label; None if the labels are unknown
    failures: tuple[tuple[str, str], ...] = ()  # scene id, reason
    orphan_labels: tuple[str, ...] = ()  # labels without an image
    unknown: tuple[str, ...] = ()  # that only a build downloads or unpacks

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def with_mask_failures(plan: Plan, executor: Executor) -> Plan:
    """Return a plan in which scenes fail if their local raster labels do not fit by a pixel."""

    def checked(scene: Planned) -> tuple[int, Planned]:
        label, rule, grid = scene.label, scene.rule, scene.grid
        if label and rule and grid and not (scene.failure or is_remote(label)):
            try:
                read_mask(label, rule, grid, _ONE_PIXEL, np.zeros((1, 1), bool))
            except GeoprepError as error:
                scene = replace(scene, failure=str(error))
        return scene.first_tile, scene

    scenes = sorted(executor.map_unordered(checked, plan.scenes), key=itemgetter(0))
    return replace(plan, scenes=tuple(scene for _, scene in scenes))


def summarise_plan(plan: Plan, sources: Sources) -> DryRun:
    """Return the summary of a plan that is not built."""
    out, labels_known = sources.out, sources.labels_known
    split_of = Counter(split for scene in plan.scenes for split in scene.splits)
    usable = sum(
        len(scene.windows)
        for scene in plan.scenes
        if not scene.failure and (scene.label is not None or not labels_known)
    )
    tile_bytes = {level: level**2 * (len(plan.meta.bands) + 1) for level in plan.meta.levels}
    on_disk = not is_bucket(out)
    return DryRun(
        scenes=len(plan.scenes),
        tiles=plan.tiles,
        levels=plan.meta.levels,
        splits={name: split_of[i] for i, name in enumerate(SPLIT_NAMES) if i in split_of},
        usable_tiles=usable,
        memory_bytes={str(level): usable * size for level, size in tile_bytes.items()},
        raw_bytes=plan.tiles * sum(tile_bytes.values()),
        free_bytes=free_bytes(Path(out)) if on_disk else None,
        replaced_bytes=sum(Files(out).sizes.values()) if on_disk and Path(out).is_dir() else 0,
        unlabelled=sum(scene.label is None for scene in plan.scenes) if labels_known else None,
        failures=tuple((scene.id, scene.failure) for scene in plan.scenes if scene.failure),
        orphan_labels=plan.orphan_labels,
        unknown=sources.unknown,
    )


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
    values = ends = 0
    shades = np.zeros(len(scenes), np.int64)
    for record in new:
        of_tiles = tiles.scene[plan.shard_range(record.shard)[0] :][: len(record.shades)]
        np.maximum.at(shades, of_tiles, record.shades)
        values, ends = values + record.values, ends + record.ends
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
        warnings=(
            *_end_warnings(plan, ends, values),
            *_shade_warnings(plan, shades),
            *_warnings(plan, store),
        ),
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
    outcomes = [(int(i), scene) for record in records for i, scene in record.scenes.items()]
    black = {index: outcome.black for index, outcome in outcomes}
    black |= {index: outcome.black for index, outcome in surveyed.items() if outcome.black}
    return {plan.scenes[index].id: black[index] for index in sorted(black) if black[index]}


def _end_warnings(plan: Plan, ends: int, values: int) -> Iterator[str]:
    """Yield a warning if nearly all values of the store are at the ends of fixed limits."""
    rule = plan.meta.rescale
    if rule in ("scene", "none") or ends <= MOST_AT_ENDS * values:
        return
    units = next((s.opened.units for s in plan.scenes if s.opened and s.opened.units), ())
    unit = f", in the unit of bands with scale and offset {units[0]}" if units else ""
    yield (
        f"{ends / values:.1%} of the values of the store are 1 or 255, the ends of `rescale` "
        f"{rule}{unit}: choose limits in the range of the images, or scene"
    )


def _shade_warnings(plan: Plan, shades: NDArray[np.int64]) -> Iterator[str]:
    """Yield a warning if scenes with imagery have few values after rescaling, however many before.

    ``shades`` are the values of a tile of each scene, 0 without imagery.
    """
    few = np.flatnonzero((shades > 0) & (shades < _FEW_SHADES))
    if plan.meta.rescale != "none" and len(few):
        scene = plan.scenes[few[0]]
        yield (
            f"{counted(len(few), 'scene')} such as {scene.id}: no tile has more than "
            f"{counted(int(shades[few].max()), 'value')} after `rescale` {plan.meta.rescale}. "
            "Check the range, scale and offset of the image: `gdalinfo -stats FILE`"
        )


def _contrast_warnings(store: StoreReader) -> Iterator[str]:
    """Yield a warning if scenes of one class or of little contrast have that of all others."""
    if store.meta.rescale != "scene":
        return
    limits, classes = store.scenes.limits, store.meta.has_classes
    stretched = np.isfinite(limits).all(axis=(1, 2))  # not of scenes that failed
    span = (limits[..., 1] - limits[..., 0])[stretched].mean(axis=1)
    flat = span < _FLAT * np.median(span)
    if classes:
        pixels = np.zeros((len(limits), len(store.classes)), np.int64)
        np.add.at(pixels, store.tiles.scene, store.class_pixels)
        pixels = pixels[stretched]
        flat |= pixels.max(axis=1) > _ONE_CLASS * pixels.sum(axis=1).clip(1)
    if flat.any():
        kind = f"nearly of one class or have less than {_FLAT:.0%} of the usual contrast"
        kind = kind if classes else kind.removeprefix("nearly of one class or ")
        yield (
            f"{counted(int(flat.sum()), 'scene')} of {len(flat)} {'are ' * classes}{kind}, and "
            "`rescale` scene stretches them to full contrast: if brightness tells classes apart, "
            "use none for 8-bit images, else city or LO,HI"
        )


def _warnings(plan: Plan, store: StoreReader) -> Iterator[str]:
    if not (store.scenes.status == "ok").any():
        return
    yield from _contrast_warnings(store)
    if store.meta.has_classes:
        yield from _class_warnings(plan, store.classes.names, store.histogram_label)
        return
    tiles, usable = store.tiles, usable_tiles(store)
    valid = tiles.valid_fraction[usable].astype(float)
    roads, labelled = float((tiles.road_fraction[usable] * valid).sum()), float(valid.sum())
    rasters = plan.options.mask_rule is not None
    fix = "`label_values`" if rasters else "`layer` and `where`"
    if roads > _HIGH_ROAD_SHARE * labelled:
        yield (
            f"{_unlabelled(plan, rasters)}{roads / labelled:.1%} of the labelled pixels of the "
            f"store are road; in cities 5 to 15 % are. Check the labels and {fix}, and build "
            "again with `overwrite`"
        )
    elif labelled > 0 and roads == 0:
        yield (
            "no road at all: 0 % of the labelled pixels of the store are road. Check the labels, "
            f"their CRS and {fix}, and build again with `overwrite`"
        )


def _class_warnings(
    plan: Plan, names: Sequence[str], counts: NDArray[np.integer[Any]]
) -> Iterator[str]:
    """Yield a warning if classes have no pixel in the counts of the training split."""
    absent = [name for name, count in zip(names, counts, strict=False) if not count]
    if absent:
        yield (
            f"{_unlabelled(plan, BACKGROUND_NAME in absent)}no pixel of the training split has the "
            f"class{'es' * (len(absent) > 1)} "
            f"{', '.join(absent)}: no model can learn {'them' if len(absent) > 1 else 'it'}. Check "
            "the labels, the values in `classes` and the splits"
        )


def _masks(plan: Plan) -> list[str]:
    scenes = (scene for scene in plan.scenes if scene.label and not scene.failure)
    return [*dict.fromkeys(scene.label for scene in scenes if scene.label)]


def _unlabelled(plan: Plan, few_background: bool) -> str:
    """Return a sentence on pixels of masks that have no label, if there is little background."""
    masks = [mask for mask in _masks(plan) if plan.options.raster_rule(mask)]
    if not few_background or not masks or plan.options.label_nodata == "none":
        return ""
    try:
        hidden = unlabelled_pixels(
            *masks[:_LABELS_LOOKED_AT],
            tags=plan.options.label_nodata is None,
            roads=plan.options.mask_rule is not None,
        )
    except GeoprepError:  # rasters that only the workers of a cluster can read
        return ""
    return f"{hidden}. " if hidden else ""
