"""Stores, folds and tiles of a model, and its inputs and outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import shapely
import torch
from numpy.typing import NDArray

import loaders
from geoprep.crs import METRES_PER_DEGREE
from geoprep.errors import UsageError
from geoprep.imagery.band_names import common_name, has_names, match_bands, parse_bands
from geoprep.speed import BIN_COUNT, BIN_TABLE, BIN_WIDTH_MPH
from geoprep.store.reader import StoreReader
from geoprep.store.tiles import TileReader
from geoprep.views.footprints import outlines
from training.model.build import ModelInfo
from training.setting_texts import Residency

Tiles = loaders.RamTiles | loaders.DeviceTiles | loaders.StreamTiles

Stores = Sequence[StoreReader]

LIKE = 1.25
"""Pixel sizes that differ by more than this factor are reported."""


class Folded(Protocol):
    """An object with the number of folds and the fold that validates, such as `ModelInfo`."""

    @property
    def folds(self) -> int | None: ...  # noqa: D102 - see the class
    @property
    def fold(self) -> int | None: ...  # noqa: D102


def folds_of(run: Folded) -> loaders.Folds | None:
    """Return the folds of a run; None if it uses the splits of the stores."""
    return None if run.folds is None else loaders.Folds(run.folds, run.fold or 0)


def count_tiles(run: Folded, stores: Stores, *splits: loaders.Split) -> int:
    """Return the number of usable tiles in splits of stores, together."""
    folds = folds_of(run)
    return sum(len(loaders.select(s, split, folds).tiles) for s in stores for split in splits)


Counts = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Number of pixels of each value: (band, 256) of the image, (256,) of the label."""


def count_fold(store: StoreReader, folds: loaders.Folds) -> Counts:
    """Return the histograms of the training scenes of a fold.

    Every training tile is read once, at the finest level: the histograms of the store count scenes
    that the fold uses for validation. A missing or damaged tile is an error.
    """
    image, label = (TileReader(store, None, name) for name in store.meta.array_names)
    bands = np.zeros((len(store.meta.bands), 256), np.uint64)
    labels = np.zeros(256, np.uint64)
    for tile in loaders.select(store, "train", folds).tiles.tolist():
        pixels = image.read(tile).reshape(-1, len(bands))
        bands += np.stack([np.bincount(band, minlength=256) for band in pixels.T]).astype(np.uint64)
        labels += np.bincount(label.read(tile).ravel(), minlength=256).astype(np.uint64)
    bands[:, 0] = 0  # nodata
    return bands, labels


def with_counts(store: StoreReader, counts: Counts) -> StoreReader:
    """Return a store whose histograms are those of `count_fold`."""
    recounted = copy.copy(store)
    vars(recounted).pop("histogram_speed", None)  # it follows from that of the label
    recounted.histogram_band, recounted.histogram_label = counts
    return recounted


def class_pixels(stores: Stores, names: Sequence[str]) -> NDArray[np.float64]:
    """Return the pixels of each class in the train splits of all stores, float64 (class,)."""
    total = np.zeros(len(names))
    for store in stores:
        found = dict(zip(store.meta.class_names, store.histogram_label.tolist(), strict=False))
        total += [found[name] for name in names]
    return total


def class_speeds(stores: Stores) -> tuple[float, ...]:
    """Return the speed of each of the seven bins in mph.

    It is the mean over the pixels of the train splits, or the centre of a bin that never occurs.
    """
    counts = np.sum([store.histogram_speed for store in stores], axis=0).astype(np.float64)
    pixels = np.bincount(BIN_TABLE, weights=counts, minlength=BIN_COUNT + 1)[1:]
    total = np.bincount(BIN_TABLE, weights=counts * np.arange(256), minlength=BIN_COUNT + 1)[1:]
    middle = BIN_WIDTH_MPH * (np.arange(BIN_COUNT) + 0.5) + 0.5
    speeds = np.where(pixels > 0, total / np.maximum(pixels, 1), middle)
    return tuple(float(speed) for speed in speeds)


def model_info(
    stores: Stores,
    *,
    model: str,
    targets: loaders.Targets | Literal["auto"] = "auto",
    bands: str | None = None,
    folds: loaders.Folds | None = None,
) -> ModelInfo:
    """Return inputs and outputs of a model that is trained on stores, for the finest level.

    ``bands`` are names or numbers with commas, None for those of the first store. ``targets``
    auto: as the labels of the stores allow.
    """
    meta = stores[0].meta
    used = tuple(meta.bands)
    if bands is not None:
        by_number: dict[int | str, str] = dict(enumerate(meta.bands, start=1))
        used = tuple(by_number.get(band, str(band)) for band in parse_bands(bands))
    mean, std = loaders.band_statistics(stores, used)
    names = loaders.common_classes(stores)
    if targets == "auto":
        speeds = all(store.has_speeds for store in stores)
        targets = "classes" if names else "bins" if speeds else "binary"
    prep = loaders.DevicePrep.from_store(stores, targets, bands=used)  # checks that the labels suit
    kinds = {store.meta.build.get("limits_of", "") for store in stores}
    rules = {store.meta.build.get("options", {}).get("nodata") for store in stores}
    return ModelInfo(
        model=model,
        bands=used,
        channels=prep.target.channels,
        targets=targets,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        rescale=meta.rescale,
        gsd_m=meta.gsd_m,
        level=meta.levels[0],
        class_mph=class_speeds(stores) if targets == "bins" else (),
        stores=tuple(store.location for store in stores),
        limits=shared_limits(stores, used),
        folds=None if folds is None else folds.count,
        fold=None if folds is None else folds.fold,
        class_names=names,
        class_colors=meta.class_colors,
        nodata=rules.pop() if len(rules) == 1 else None,
        limits_of=kinds.pop() if len(kinds) == 1 else "",
    )


def shared_limits(stores: Stores, bands: Sequence[str]) -> tuple[tuple[float, float], ...]:
    """Return the source values that became black and white in all scenes, one pair per band.

    The result is empty if scenes differ, as with the rule ``scene``, or if rules differ.
    """
    if any(store.meta.rescale != "city" for store in stores):
        return ()
    known = []
    for store in stores:
        limits = store.scenes.limits[:, [store.meta.bands.index(band) for band in bands]]
        known += [*limits[np.isfinite(limits).all(axis=(1, 2))]]
    distinct = np.unique(np.array(known), axis=0)
    if len(distinct) != 1:
        return ()
    return tuple((float(low), float(high)) for low, high in distinct[0])


def differences(info: ModelInfo, stores: Stores) -> list[str]:
    """Return the differences between stores and the data of a model, one line each."""
    lines = []
    for store in stores:
        names = store.meta.class_names
        if info.has_classes and names != info.class_names:
            lines.append(
                f"{store.location} has the classes in the order {', '.join(names)}: its labels are "
                f"read as {', '.join(info.class_names)}"
            )
        here, there = level_gsd(store, info.level)[0], info.gsd_m[0]
        if not 1 / LIKE < here / there < LIKE:
            lines.append(
                f"pixels of {store.location} are {here:.2g} m wide, those of the model "
                f"{there:.2g} m"
            )
        if store.meta.rescale != info.rescale:
            lines.append(
                f"{store.location} was rescaled by the rule {store.meta.rescale!r}, the model's "
                f"data by {info.rescale!r}: colours may differ"
            )
        rule = store.meta.build.get("options", {}).get("nodata")
        if rule != info.nodata:
            lines.append(
                f"{store.location} was built with `nodata` {rule or 'as the images state'}, the "
                f"model predicts with {info.nodata or 'what the images state'}: build all stores "
                "with one rule"
            )
        if set(info.bands) == set(store.meta.bands) and info.bands != tuple(store.meta.bands):
            lines.append(
                f"{store.location} has the bands in the order {', '.join(store.meta.bands)}: they "
                f"are read by name, as {', '.join(info.bands)}"
            )
    return lines


def shared_ground(stores: Stores, folds: loaders.Folds | None) -> Iterator[str]:
    """Yield a line per pair of stores where one trains on validation ground of the other.

    Scenes that are not georeferenced are compared by their ids.
    """
    for one, other in permutations(stores, 2):
        (train, ids), (val, val_ids) = _ground(one, "train", folds), _ground(other, "val", folds)
        inset = one.meta.gsd_m[0] / METRES_PER_DEGREE  # a pixel: neighbours may share a row
        inside = shapely.buffer(train, -inset, join_style="mitre")
        shared = np.isin(ids, val_ids) & shapely.is_missing(train)
        shared[shapely.STRtree(val).query(inside, predicate="intersects")[0]] = True
        if shared.any():
            yield (
                f"{shared.sum():,} training tiles of {one.location} show ground of validation "
                f"tiles of {other.location}, such as {ids[shared][0]}: scores will be too high. "
                "Build both with the same splits, or as one store"
            )


def _ground(
    store: StoreReader, split: loaders.Split, folds: loaders.Folds | None
) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
    """Return the outlines of the tiles of a split in degrees, and the ids of their scenes."""
    tiles = loaders.select(store, split, folds).tiles
    return outlines(store, "tile", "EPSG:4326")[0][tiles], store.scenes.id[store.tiles.scene[tiles]]


def level_gsd(store: StoreReader, level: int) -> tuple[float, float]:
    """Return the pixel size of a level along x and y in metres."""
    x, y = store.meta.gsd_m
    scale = store.meta.tile / level
    return x * scale, y * scale


def check_store(info: ModelInfo, stores: Stores, where: str) -> None:
    """Check that stores have the bands and labels that a model was trained on."""
    for store in stores:
        store.check_labels()
        if set(info.class_names) != set(store.meta.class_names):
            trained, has = (
                f"the classes {', '.join(names)}" if names else "speeds of roads"
                for names in (info.class_names, store.meta.class_names)
            )
            raise UsageError(
                f"{where} was trained on {trained}; the labels of {store.location} hold {has}: use "
                "a store with such labels, or train a model on this one"
            )
        if info.targets not in ("binary", "classes") and not store.meta.has_speeds:
            raise UsageError(
                f"{where} was trained on {info.targets} of speed; the roads of {store.location} "
                "have no speeds: train one with `targets` binary, or use a store with speeds"
            )
        lacking = [band for band in info.bands if band not in store.meta.bands]
        if lacking:
            raise UsageError(
                f"{where} was trained on bands {', '.join(info.bands)}; {store.location} has "
                f"{', '.join(store.meta.bands)}: use a store with the same bands, or train a model "
                "on this one"
            )


def _with_names(store: StoreReader, bands: Sequence[str]) -> StoreReader:
    """Return a store whose bands are called as those of a model that names find in it."""
    wanted, offered = (
        [(name, common_name(name)) for name in names] for names in (bands, store.meta.bands)
    )
    match, names = match_bands(wanted, offered), [*store.meta.bands]
    named = has_names(wanted) or has_names(offered)  # else positions count
    if match.missing or (match.unnamed and named) or set(bands) <= set(names):
        return store
    for band, place in zip(bands, match.places, strict=True):
        names[place] = band
    return StoreReader(store.location, store.document, replace(store.meta, bands=tuple(names)))


def tiles_of(
    info: ModelInfo,
    stores: Sequence[str | Path | StoreReader],
    split: loaders.Split = "train",
    *,
    progress: bool | None = False,
    residency: Residency = "ram",
    limit: loaders.StreamTiles | str = "4GiB",
    device: torch.device | None = None,
) -> Tiles:
    """Return tiles for a model, with its bands, level and folds."""
    opened = [_with_names(store, info.bands) for store in loaders.open_stores(stores)]
    check_store(info, opened, "the model")
    options: dict[str, Any] = {"bands": info.bands, "classes": info.class_names}
    if split in ("train", "val"):
        options |= {"folds": info.folds, "fold": info.fold or 0}
    if residency == "stream":
        return loaders.StreamTiles.open(opened, split, info.level, limit, **options)
    options["progress"] = progress
    if residency == "device":
        return loaders.DeviceTiles.load(opened, split, info.level, device=device, **options)
    options["keep"] = "compressed" if residency == "compressed" else "pixels"
    return loaders.RamTiles.load(opened, split, info.level, **options)
