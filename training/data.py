"""What a stage of a run learns from and is judged on: tiles, loaders, and the facts about them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geoprep.errors import UsageError
from geoprep.store import Store
from loaders import (
    BatchLoader,
    DevicePrep,
    DeviceTiles,
    Folds,
    Jitter,
    Normalize,
    RamTiles,
    SpeedTarget,
    Split,
    StreamTiles,
    Targets,
    band_statistics,
    open_stores,
    select,
    this_rank,
)
from training.checkpoint import Facts
from training.config import Config, Residency, Stage
from training.decode import class_speeds
from training.engine import Engine

LIKE = 1.25
"""Ground sample distances further apart than this factor are worth a word."""


def open_data(config: Config) -> tuple[Store, ...]:
    """Open the stores of a run; their histograms are of the scenes that it learns from.

    Raises
    ------
    StoreError, UsageError
        One cannot be used, or none is named.
    """
    if not config.stores:
        raise UsageError("name at least one store: python -m training.fit moscow.zarr")
    stores = open_stores(config.stores)
    cut = folds_of(config)
    return stores if cut is None else tuple(counted(store, cut) for store in stores)


def folds_of(config: Config) -> Folds | None:
    """Return how training and validation scenes are cut anew; None leaves them as stored."""
    return None if config.folds is None else Folds(config.folds, config.fold)


def counted(store: Store, cut: Folds) -> Store:
    """Return a store whose histograms are of the training scenes of a fold.

    Those that it keeps hold scenes which now validate. Every training tile is read once, at the
    finest level, a shard's worth at a time.
    """
    tiles = select(store, "train", cut).tiles
    image, speed = store.image(), store.speed()
    bands = np.zeros((len(store.meta.bands), 256), np.uint64)
    speeds = np.zeros(256, np.uint64)
    for shard in np.split(tiles, np.flatnonzero(np.diff(tiles // store.meta.shard_tiles)) + 1):
        if not len(shard):
            continue
        first, last = int(shard[0]), int(shard[-1]) + 1
        pixels = np.asarray(image[first:last])[shard - first].reshape(-1, len(bands))
        bands += np.stack([np.bincount(band, minlength=256) for band in pixels.T]).astype(np.uint64)
        mph = np.asarray(speed[first:last])[shard - first].ravel()
        speeds += np.bincount(mph, minlength=256).astype(np.uint64)
    bands[:, 0] = 0  # no data
    cut_store = copy.copy(store)
    cut_store.histogram_band, cut_store.histogram_speed = bands, speeds
    return cut_store


def facts_of(config: Config, stores: Sequence[Store]) -> Facts:
    """Return what prediction will need to know, for the finest level."""
    meta = stores[0].meta
    bands = tuple(meta.bands)
    if config.bands is not None:
        bands = tuple(name.strip() for name in config.bands.split(","))
    mean, std = band_statistics(stores, bands)
    targets = targets_of(config, stores)
    return Facts(
        network=config.model,
        bands=bands,
        channels=SpeedTarget(targets).channels,
        targets=targets,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        rescale=meta.rescale,
        gsd_m=meta.gsd_m,
        level=meta.levels[0],
        class_mph=class_speeds(stores) if targets == "bins" else (),
        stores=tuple(store.location for store in stores),
        limits=shared_limits(stores, bands),
        folds=config.folds,
        fold=None if config.folds is None else config.fold,
    )


def targets_of(config: Config, stores: Sequence[Store]) -> Targets:
    """Return what a network shall learn: by default all that the labels of every store say.

    Raises
    ------
    UsageError
        Speeds are asked for, and the roads of a store have none.
    """
    wanted = config.targets
    without = [store.location for store in stores if not store.meta.has_speeds]
    if wanted == "auto":
        return "binary" if without else "bins"
    if without and wanted != "binary":
        raise UsageError(
            f"--targets {wanted}: the roads of {', '.join(without)} have no speeds (built from "
            "masks of roads): use --targets binary, or build from labels with speeds"
        )
    return wanted


def shared_limits(stores: Sequence[Store], bands: Sequence[str]) -> tuple[tuple[float, float], ...]:
    """Return the source values that became black and white in all scenes, one pair per band.

    Empty where scenes differ, as they do under the rule ``scene``, or stores follow another rule.
    """
    if any(store.meta.rescale != "city" for store in stores):
        return ()
    found = []
    for store in stores:
        limits = store.scenes.limits[:, [store.meta.bands.index(band) for band in bands]]
        found += [*limits[np.isfinite(limits).all(axis=(1, 2))]]
    distinct = np.unique(np.array(found), axis=0)
    if len(distinct) != 1:
        return ()
    return tuple((float(low), float(high)) for low, high in distinct[0])


def differences(facts: Facts, stores: Sequence[Store]) -> list[str]:
    """Return what sets stores apart from what a network is trained on, a line each.

    Parameters
    ----------
    facts
        Of the network, at the level that the stores are used at.
    stores
        To train on further, or beside the first.
    """
    found = []
    for store in stores:
        here, there = level_gsd(store, facts.level)[0], facts.gsd_m[0]
        if not 1 / LIKE < here / there < LIKE:
            found.append(
                f"pixels of {store.location} are {here:.2g} m wide, the network's {there:.2g} m"
            )
        if store.meta.rescale != facts.rescale:
            found.append(
                f"{store.location} was rescaled by the rule {store.meta.rescale!r}, the network's "
                f"data by {facts.rescale!r}: its colours may differ"
            )
        if set(facts.bands) == set(store.meta.bands) and facts.bands != tuple(store.meta.bands):
            found.append(
                f"{store.location} has its bands as {', '.join(store.meta.bands)}: they are read "
                f"by name, as {', '.join(facts.bands)}"
            )
    return found


def level_gsd(store: Store, level: int) -> tuple[float, float]:
    """Return the ground sample distance of a level in metres, along x and y."""
    x, y = store.meta.gsd_m
    scale = store.meta.tile / level
    return x * scale, y * scale


def make_prep(facts: Facts, engine: Engine, jitter: float = 0.0) -> DevicePrep:
    """Return what normalises images and expands targets as these facts say.

    Parameters
    ----------
    facts
        Statistics and targets.
    engine
        Decides the dtype of images.
    jitter
        Strength: 1 is that of `loaders.Jitter`'s defaults, 0 none.
    """
    targets: Targets = facts.targets  # type: ignore[assignment]  # read from a file as a string
    varied = Jitter(0.2 * jitter, 0.2 * jitter, 0.05 * jitter) if jitter else None
    normalize = Normalize(facts.mean, facts.std, engine.dtype)
    return DevicePrep(normalize, SpeedTarget(targets), jitter=varied)


def check_store(facts: Facts, stores: Sequence[Store], where: str) -> None:
    """Refuse stores that do not have the bands, or the speeds, that a network was trained on.

    Raises
    ------
    UsageError
        They do not.
    """
    for store in stores:
        if facts.targets != "binary" and not store.meta.has_speeds:
            raise UsageError(
                f"{where} was trained on {facts.targets} of speed; the roads of {store.location} "
                "have no speeds: train one with --targets binary, or use a store with speeds"
            )
        lacking = [band for band in facts.bands if band not in store.meta.bands]
        if lacking:
            raise UsageError(
                f"{where} was trained on bands {', '.join(facts.bands)}; {store.location} has "
                f"{', '.join(store.meta.bands)}: use a store with the same bands, or train on this"
            )


def tiles_of(
    facts: Facts,
    stores: Sequence[str | Path | Store],
    split: Split = "train",
    *,
    progress: bool | None = False,
    residency: Residency = "ram",
    limit: StreamTiles | str = "4GiB",
    device: torch.device | None = None,
) -> RamTiles | DeviceTiles | StreamTiles:
    """Return tiles for a network: of its bands and its level, split by its folds.

    Parameters
    ----------
    progress
        Whether to draw a bar; None: on a terminal.
    residency
        Where they live.
    limit
        Memory for streamed tiles, or others whose memory they use as well.
    device
        For tiles that live there.

    Raises
    ------
    StoreError, UsageError
        A store cannot be used, or does not belong to the network.
    """
    opened = open_stores(stores)
    check_store(facts, opened, "the network")
    how: dict[str, Any] = {"bands": facts.bands}
    if split in ("train", "val"):
        how |= {"folds": facts.folds, "fold": facts.fold or 0}
    if residency == "stream":
        return StreamTiles.open(opened, split, facts.level, limit, **how)
    how["progress"] = progress
    if residency == "device":
        return DeviceTiles.load(opened, split, facts.level, device=device, **how)
    how["keep"] = "compressed" if residency == "compressed" else "pixels"
    return RamTiles.load(opened, split, facts.level, **how)


def load_stage(
    config: Config, facts: Facts, stores: Sequence[Store], stage: Stage, device: torch.device
) -> tuple[BatchLoader, BatchLoader | None]:
    """Load the tiles of a stage; return the loader to train with, and the one to validate with.

    The second is of whole tiles, every one once, and None where no scene validates.

    Raises
    ------
    StoreError, UsageError
        The store lacks the level, the tiles do not fit into memory, or there are too few.
    """
    how: dict[str, Any] = {
        "progress": False if config.quiet else None,
        "residency": config.residency,
        "device": device,
    }
    tiles = tiles_of(facts, stores, "train", limit=config.ram_limit, **how)
    training = _training_loader(config, tiles, stage)
    if not any(len(select(store, "val", folds_of(config)).tiles) for store in stores):
        return training, None
    if isinstance(tiles, StreamTiles):
        how["limit"] = tiles
    whole, threads = tiles_of(facts, stores, "val", **how), config.loader_threads
    return training, BatchLoader(whole, config.val_batch_size, shuffle=False, threads=threads)


def windows(config: Config, stage: Stage, side: int) -> tuple[int | None, int]:
    """Return the side of windows, None for whole tiles, and the samples per tile and epoch.

    A tile that is no larger than a window is one sample.
    """
    inside = stage.crop is not None and stage.crop < side
    return (stage.crop, config.crops_per_tile) if inside else (None, 1)


def _training_loader(
    config: Config, tiles: RamTiles | DeviceTiles | StreamTiles, stage: Stage
) -> BatchLoader:
    assert isinstance(config.batch_size, int)  # "auto" has become a number by now
    crop, per_tile = windows(config, stage, tiles.side)
    options: dict[str, Any] = {
        "crop": crop,
        "augment": config.augment,
        "crops_per_tile": per_tile,
        "seed": config.seed,
        "threads": config.loader_threads,
        "min_road": config.min_road,
        "weights": config.weights,
    }
    try:
        return BatchLoader(tiles, config.batch_size, **options)
    except UsageError as error:
        one = BatchLoader(tiles, 1, rank=0, world_size=1, **options)  # raises what else is wrong
        ranks = this_rank()[1]
        fits = one.samples // ranks
        fix = f"--batch-size {fits} is the most that fits" if fits else "start fewer of them"
        shared = f" on each of {ranks} ranks" if ranks > 1 else ""
        raise UsageError(
            f"--batch-size {config.batch_size}: an epoch has {one.samples} samples, {per_tile} "
            f"per tile of {one.drawn_tiles}, less than one batch{shared}: {fix}"
        ) from error
