"""What a build did, in figures: read back from the finished store, so that they are its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from geoprep.building.records import ShardRecord
from geoprep.errors import GeoprepError
from geoprep.labels import mask_values
from geoprep.plan import Plan
from geoprep.storage import StoreFiles
from geoprep.store import SPLIT_NAMES, SPLITS, Store, road_fraction, scene_issues, valid_fraction

_MASKS_LOOKED_AT: Final = 8


@dataclass(frozen=True, slots=True)
class Summary:
    """What a build did.

    Attributes
    ----------
    state
        ``built``, ``resumed``, or ``unchanged`` when the store was complete already.
    issues
        (scene id, status, reason) of every scene that is not as it should be.
    notes
        Counted fallbacks of road attributes.
    warnings
        What is built as asked and most likely not as meant.
    road_fraction
        Share of the labelled pixels that is road, over the tiles of scenes that are ``ok``.
    valid_fraction
        Share of all scenes' pixels that hold imagery; what pads a tile is no pixel of a scene.
    source_bytes
        Bytes of pixels decoded by this run, uncompressed.
    seconds
        Of this run; ``stages`` divides the threads' own time.
    """

    store: str
    state: Literal["built", "resumed", "unchanged"]
    tiles: int
    levels: tuple[int, ...]
    store_bytes: int
    statuses: dict[str, int]
    issues: tuple[tuple[str, str, str], ...]
    notes: dict[str, int]
    orphan_labels: tuple[str, ...]
    splits: dict[str, int]
    road_fraction: float
    valid_fraction: float
    scenes_built: int = 0
    source_bytes: int = 0
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def summarise(
    plan: Plan,
    out: str,
    state: Literal["built", "resumed", "unchanged"],
    new: Iterable[ShardRecord],
    seconds: float,
) -> Summary:
    """Describe a finished store and the run that finished it.

    Parameters
    ----------
    plan, out
        What was built, and where.
    state
        How the run went.
    new
        Records of the shards built by this run.
    seconds
        Wall time of this run.
    """
    store = Store.open(out)
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
        store_bytes=sum(StoreFiles(out).sizes.values()),
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
        warnings=tuple(_roadless_masks(plan, store)),
    )


def _roadless_masks(plan: Plan, store: Store) -> Iterator[str]:
    """Yield a warning where no mask of a whole build has a road.

    One mask without any is a scene without roads; all of them are a wrong word for what is road.
    """
    options, usable = plan.options, store.scenes.status == "ok"
    if options.mask_rule is None or not usable.any() or store.tiles.road_fraction.any():
        return
    masks = dict.fromkeys(
        scene.label for scene, ok in zip(plan.scenes, usable, strict=True) if ok and scene.label
    )
    asked = (
        f"--label-speeds {options.label_speeds}"
        if options.label_values is None
        else f"--label-values {options.label_values}"
    )
    try:
        found = f": they hold {mask_values(*islice(masks, _MASKS_LOOKED_AT))}"
    except GeoprepError:  # masks that only the workers of a cluster reach
        found = ""
    yield (
        f"no road in any mask ({len(masks)}) by {asked}{found}. If that is not so on the ground, "
        "say it otherwise and build again with --overwrite"
    )
