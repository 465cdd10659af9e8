"""A checkpoint and stores -> metrics, on whole tiles, over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from geoprep.store import Store
from loaders import BatchLoader, RamTiles, Split, open_stores
from training.checkpoint import Facts, Weights, load_network
from training.data import check_store, level_gsd, make_prep
from training.engine.native import DeviceName, Precision, choose_engine
from training.losses import make_loss
from training.module import Trainable
from training.validate import evaluate

LIKE = 1.25
"""Ground sample distances further apart than this factor are worth a word."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """How good a network is.

    Attributes
    ----------
    metrics
        By name, see `training.metrics.RoadMetrics`.
    facts
        Of the network, at the level that was looked at.
    tiles
        How many were looked at.
    notes
        What a person should know about the figures.
    """

    metrics: dict[str, float]
    facts: Facts
    tiles: int
    notes: tuple[str, ...]


def assess(
    checkpoint: str | Path,
    stores: Sequence[str | Path | Store],
    split: Split = "val",
    *,
    level: int | None = None,
    weights: Weights = "auto",
    batch_size: int = 4,
    device: DeviceName = "auto",
    precision: Precision = "bf16",
    quiet: bool = True,
) -> Assessment:
    """Return how good a checkpoint is on a split of one or more stores.

    Parameters
    ----------
    checkpoint
        A file, or the folder of a run: then its best one.
    stores
        One or several, with the bands that the network was trained on.
    split
        ``val``, ``train``, ``test`` or ``all``.
    level
        Tile side in pixels; None for the one trained on last.
    weights
        See `training.checkpoint.load_network`.
    batch_size
        Tiles per batch and rank.
    device, precision
        How to compute.
    quiet
        No progress bar.

    Raises
    ------
    CheckpointError, StoreError, UsageError
        Checkpoint or store cannot be used, or do not belong together.
    """
    network, facts = load_network(checkpoint, weights=weights)
    opened = open_stores(stores)
    check_store(facts, opened, str(checkpoint))
    engine = choose_engine("native", device, precision, compile_mode="off")
    side = facts.level if level is None else level
    show = False if quiet else None
    tiles = RamTiles.load(opened, split, side, bands=facts.bands, progress=show)
    trainable = Trainable(make_prep(facts, engine), network, make_loss()).to(engine.device)
    loader = BatchLoader(tiles, batch_size, shuffle=False)
    metrics = evaluate(trainable, engine, facts, loader)
    notes = tuple(note for store in opened for note in _differences(facts, store, side))
    return Assessment(metrics, replace(facts, level=side), len(tiles), notes)


def _differences(facts: Facts, store: Store, level: int) -> list[str]:
    """Return in what a store differs from those that were trained on."""
    found = []
    here, there = level_gsd(store, level)[0], facts.gsd_m[0]
    if not 1 / LIKE < here / there < LIKE:
        found.append(
            f"pixels of {store.location} are {here:.2g} m wide, those trained on {there:.2g} m: "
            "another --level may suit better"
        )
    if store.meta.rescale != facts.rescale:
        found.append(
            f"{store.location} was rescaled by the rule {store.meta.rescale!r}, the training data "
            f"by {facts.rescale!r}"
        )
    return found
