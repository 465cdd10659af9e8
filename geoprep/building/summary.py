"""What a build did, in figures: read back from the finished store, so that they are its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
LARGEST_ROAD_SHARE: Final = 0.4
"""In cities some 5 to 15 % of the ground is road."""


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
    black
        Scene id -> number of its pixels that are nodata only because they are black: connected to
        the image's edge or a large block, in an image without alpha, mask or nodata tag.
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
    black: dict[str, int] = field(default_factory=dict)


def summarise(
    plan: Plan,
    out: str,
    state: Literal["built", "resumed", "unchanged"],
    new: Iterable[ShardRecord],
    seconds: float,
    black: Mapping[str, int] | None = None,
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
    black
        As in the summary; None: not known.
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
        warnings=(*_roadless_masks(plan, store), *_odd_share(plan, store)),
        black=dict(black or {}),
    )


def _odd_share(plan: Plan, store: Store) -> Iterator[str]:
    labelled = store.scenes.status == "ok"
    if labelled.any():
        yield from odd_road_share(plan, road_fraction(store), "all labelled pixels")


def odd_road_share(plan: Plan, share: float, of: str) -> Iterator[str]:
    """Yield a warning if the share of road is 0 or larger than on any ground.

    Parameters
    ----------
    share
        0 to 1.
    of
        What it is a share of, for the message.
    """
    masks = plan.options.mask_rule is not None
    fix = "`label_values`" if masks else "`layer`, `where` and `areas`"
    if share == 0 and not masks:  # of masks `_roadless_masks` says more
        yield (
            f"no road at all: 0 % of {of} are road. Check that the labels hold roads, and {fix}, "
            "then build again with `overwrite`"
        )
    elif share > LARGEST_ROAD_SHARE:
        yield (
            f"{share:.1%} of {of} are road; in cities some 5 to 15 % are. Check that the labels "
            f"hold nothing else, and {fix}, then build again with `overwrite`"
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
