"""What a stage of a run learns from and is judged on: tiles, loaders, and the facts about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from geoprep.errors import UsageError
from geoprep.store import Store
from loaders import (
    BatchLoader,
    DevicePrep,
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
)
from training.checkpoint import Facts
from training.config import Config, DataConfig
from training.decode import class_speeds
from training.engine.native import Engine
from training.stages import Stage

Tiles = RamTiles | StreamTiles


@dataclass(frozen=True, slots=True)
class StageData:
    """The tiles of a stage.

    Attributes
    ----------
    loader
        Of training batches.
    validation
        Of whole validation tiles, every one once; None where no scene validates.
    tiles, validation_tiles
        What they read.
    """

    loader: BatchLoader
    validation: BatchLoader | None
    tiles: Tiles
    validation_tiles: Tiles | None


def open_data(config: DataConfig) -> tuple[Store, ...]:
    """Open the stores of a run.

    Raises
    ------
    StoreError, UsageError
        One cannot be used, or none is named.
    """
    if not config.stores:
        raise UsageError("name at least one store: python -m training.fit moscow.zarr")
    return open_stores(config.stores)


def band_names(config: DataConfig, stores: Sequence[Store]) -> tuple[str, ...]:
    """Return the bands to use."""
    if config.bands is None:
        return tuple(stores[0].meta.bands)
    return tuple(name.strip() for name in config.bands.split(","))


def facts_of(config: Config, stores: Sequence[Store]) -> Facts:
    """Return what prediction will need to know, for the finest level."""
    bands = band_names(config.data, stores)
    mean, std = band_statistics(stores, bands)
    targets = config.network.targets
    meta = stores[0].meta
    return Facts(
        network=config.network.model,
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
    )


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
    """Refuse stores that do not have the bands a network was trained on.

    Raises
    ------
    UsageError
        They do not.
    """
    for store in stores:
        lacking = [band for band in facts.bands if band not in store.meta.bands]
        if lacking:
            raise UsageError(
                f"{where} was trained on bands {', '.join(facts.bands)}; {store.location} has "
                f"{', '.join(store.meta.bands)}: use a store with the same bands, or train on this"
            )


def load_split(
    config: DataConfig, stores: Sequence[Store], split: Split, level: int | None, *, quiet: bool
) -> Tiles | None:
    """Return the tiles of a split, None where it has none.

    Raises
    ------
    StoreError, UsageError
        As `RamTiles.load` and `StreamTiles.open` do.
    """
    cut = None if config.folds is None else Folds(config.folds, config.fold)
    if split == "val" and not any(len(select(s, split, cut).tiles) for s in stores):
        return None
    options: dict[str, Any] = {
        "bands": band_names(config, stores),
        "folds": config.folds,
        "fold": config.fold,
    }
    if config.residency == "stream":
        return StreamTiles.open(stores, split, level, config.ram_limit, **options)
    return RamTiles.load(stores, split, level, progress=False if quiet else None, **options)


def load_stage(config: Config, stores: Sequence[Store], stage: Stage, engine: Engine) -> StageData:
    """Load the tiles of a stage and make its loaders.

    Raises
    ------
    StoreError, UsageError
        The store lacks the level, the tiles do not fit into memory, or there are too few.
    """
    quiet = config.output.quiet
    tiles = load_split(config.data, stores, "train", stage.level, quiet=quiet)
    assert tiles is not None  # an empty train split raises
    judged = load_split(config.data, stores, "val", stage.level, quiet=quiet)
    return StageData(
        _training_loader(config, tiles, stage, engine),
        None if judged is None else whole_tiles(judged, config),
        tiles,
        judged,
    )


def whole_tiles(tiles: Tiles, config: Config) -> BatchLoader:
    """Return a loader of every tile once."""
    threads = config.machine.loader_threads
    return BatchLoader(tiles, config.machine.val_batch_size, shuffle=False, threads=threads)


def _training_loader(config: Config, tiles: Tiles, stage: Stage, engine: Engine) -> BatchLoader:
    sampling = config.sampling
    assert isinstance(sampling.batch_size, int)  # "auto" has become a number by now
    inside = stage.crop is not None and stage.crop < tiles.side
    return BatchLoader(
        tiles,
        sampling.batch_size,
        crop=stage.crop if inside else None,
        augment=sampling.augment,
        crops_per_tile=sampling.crops_per_tile if inside else 1,
        seed=config.optim.seed,
        threads=config.machine.loader_threads,
        min_road=sampling.min_road,
        weights=sampling.weights,
        residency=config.data.residency,
        device=engine.device if config.data.residency == "device" else None,
    )
