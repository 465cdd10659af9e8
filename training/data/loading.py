"""Tiles and loaders of the stages of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from geoprep.store import StoreReader
from loaders import (
    BatchLoader,
    ClassTarget,
    DeviceAugmentation,
    DevicePrep,
    DeviceTiles,
    Jitter,
    Normalize,
    RamTiles,
    SpeedTarget,
    Split,
    StreamTiles,
    Targets,
    open_stores,
    select,
)
from training.checkpoint import ModelInfo
from training.data.stores import check_store, folds_of
from training.engine import Engine, max_over_ranks
from training.settings import Config, Residency, SamplingConfig, Stage, parse_shares


def make_prep(info: ModelInfo, engine: Engine, random: SamplingConfig | None = None) -> DevicePrep:
    """Return the module that normalises images and expands labels; ``random`` also varies them."""
    targets: Targets = info.targets  # type: ignore[assignment]  # read from a file as a string
    normalize = Normalize(info.mean, info.std, engine.dtype)
    target = ClassTarget(info.channels) if info.has_classes else SpeedTarget(targets)
    if random is None:
        return DevicePrep(normalize, target)
    jitter = random.jitter
    varied = Jitter(0.2 * jitter, 0.2 * jitter, 0.05 * jitter) if jitter else None
    names = ("scale", "rotate", "blur", "noise", "shadow")
    given, off = ({n: getattr(one, n) for n in names} for one in (random, SamplingConfig()))
    changed = None if given == off else DeviceAugmentation(**given)
    return DevicePrep(normalize, target, jitter=varied, augmentation=changed)


def tiles_of(
    info: ModelInfo,
    stores: Sequence[str | Path | StoreReader],
    split: Split = "train",
    *,
    progress: bool | None = False,
    residency: Residency = "ram",
    limit: StreamTiles | str = "4GiB",
    device: torch.device | None = None,
) -> RamTiles | DeviceTiles | StreamTiles:
    """Return tiles for a model, with its bands, level and folds."""
    opened = open_stores(stores)
    check_store(info, opened, "the model")
    options: dict[str, Any] = {"bands": info.bands, "classes": info.class_names}
    if split in ("train", "val"):
        options |= {"folds": info.folds, "fold": info.fold or 0}
    if residency == "stream":
        return StreamTiles.open(opened, split, info.level, limit, **options)
    options["progress"] = progress
    if residency == "device":
        return DeviceTiles.load(opened, split, info.level, device=device, **options)
    options["keep"] = "compressed" if residency == "compressed" else "pixels"
    return RamTiles.load(opened, split, info.level, **options)


def load_stage(
    config: Config,
    info: ModelInfo,
    stores: Sequence[StoreReader],
    stage: Stage,
    device: torch.device,
) -> tuple[BatchLoader, BatchLoader | None]:
    """Load the tiles of a stage; return its loaders for training and validation.

    The validation loader returns each whole tile once. It is None if the validation split is empty.
    Validation tiles are streamed if they do not fit on the device beside the training tiles.
    """
    options: dict[str, Any] = {
        "progress": False if config.quiet else None,
        "residency": config.residency,
        "device": device,
    }
    room = DeviceTiles.room(device) if config.residency == "device" else None
    tiles = tiles_of(info, stores, "train", limit=config.ram_limit, **options)
    crop, per_tile = crops_of(config, stage, tiles.side)
    assert isinstance(config.batch_size, int)  # "auto" was replaced before
    training = BatchLoader(
        tiles,
        config.batch_size,
        crop=crop,
        augment=config.augment,
        crops_per_tile=per_tile,
        seed=config.seed,
        threads=config.loader_threads,
        min_road=config.min_road,
        min_share=parse_shares(config.min_share) if config.min_share else None,
        weights=config.weights,
    )
    count = sum(len(select(store, "val", folds_of(config)).tiles) for store in stores)
    if not count:
        return training, None
    if isinstance(tiles, StreamTiles):
        options["limit"] = tiles
    elif room is not None:
        over = float(tiles.nbytes + count * tiles.tile_bytes > room)
        if any(max_over_ranks([over], torch.device("cpu"))):  # loading is the work of all ranks
            options |= {"residency": "stream", "limit": config.ram_limit}
    whole, threads = tiles_of(info, stores, "val", **options), config.loader_threads
    return training, BatchLoader(whole, config.val_batch_size, shuffle=False, threads=threads)


def crops_of(config: Config, stage: Stage, side: int) -> tuple[int | None, int]:
    """Return the side of crops, None for whole tiles, and the samples per tile and epoch.

    Tiles that are not larger than a crop are one sample each.
    """
    inside = stage.crop is not None and stage.crop < side
    return (stage.crop, config.crops_per_tile) if inside else (None, 1)
