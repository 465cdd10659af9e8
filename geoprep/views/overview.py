"""Draw a preview of a store: choose scenes, read them, draw images and labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from geoprep.grid import Grid
from geoprep.outputs import check_outputs, require_suffix
from geoprep.speed import NODATA
from geoprep.storage.output_files import replaced
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import (
    find_scene,
    road_fraction,
    scene_grid,
    scene_roads,
    scene_shape,
    scene_splits,
    valid_share,
)
from geoprep.store.schema import SPLITS, STATUSES
from geoprep.texts import counted
from geoprep.views.display import (
    MOSTLY_VALID,
    SUFFIXES,
    aspect_of,
    brightness_table,
    display_rgb,
    label_title,
    natural_bands,
    north_up,
    read_thinned,
)

if TYPE_CHECKING:
    from geoprep.views.sheet import SceneView


def preview(
    store: StoreReader,
    out: Path,
    *,
    scenes: Sequence[str] | None = None,
    count: int = 6,
    level: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Draw the image, the label and their overlay of named scenes or of ``count`` chosen ones.

    ``level`` None is the coarsest level that is as fine as the picture.
    """
    from geoprep.views import sheet

    require_suffix(out, *SUFFIXES)
    check_outputs(out, inputs=[store.location], overwrite=overwrite)
    chosen = [find_scene(store, name) for name in scenes] if scenes else choose_scenes(store, count)
    grids = [scene_grid(store, scene) for scene in chosen]
    columns = ("image", label_title(store.meta), "overlay")
    pixels = sheet.panel_pixels(len(chosen), columns)
    level = store.check_level(_fitting_level(store, grids, pixels) if level is None else level)
    brighten = brightness_table(store)
    views = [scene_view(store, scene, level, pixels, brighten) for scene in chosen]
    with replaced(out) as partial:
        sheet.draw(partial, views, columns, _header(store, level))
    return out


def choose_scenes(store: StoreReader, count: int) -> list[int]:
    """Return scenes of every split, and of every status but ``ok``, in turn; each at random.

    Scenes with much nodata come last.
    """
    splits, status, roads = scene_splits(store), store.scenes.status, scene_roads(store)
    groups = [np.flatnonzero((status == "ok") & (splits == i)) for i in range(len(SPLITS))]
    groups += [np.flatnonzero(status == problem) for problem in STATUSES if problem != "ok"]

    def bordering(scene: int) -> bool:
        return bool(status[scene] == "ok" and valid_share(store, scene) < MOSTLY_VALID)

    rng = np.random.default_rng(0)
    shuffled = [sorted(rng.permutation(group).tolist(), key=bordering) for group in groups]
    in_turn = [scene for turn in zip_longest(*shuffled) for scene in turn if scene is not None]
    first = sum(map(bool, shuffled))  # one of every split and status
    in_turn[first:] = sorted(in_turn[first:], key=bordering)
    return sorted(in_turn[:count], key=lambda scene: (status[scene] != "ok", -roads[scene], scene))


def _fitting_level(store: StoreReader, grids: Sequence[Grid | None], pixels: int) -> int:
    """Return the coarsest level at which every scene is at least as wide as its panel."""
    widths = [grid.width for grid in grids if grid is not None]
    for level in reversed(store.meta.levels):
        if min(widths, default=pixels) * level // store.meta.tile >= pixels:
            return level
    return store.meta.levels[0]


def scene_view(
    store: StoreReader, scene: int, level: int, pixels: int, brighten: NDArray[np.uint8]
) -> SceneView:
    """Read one scene, north up, for a picture about as many pixels wide."""
    from geoprep.views.sheet import SceneView

    grid = scene_grid(store, scene)
    if store.scenes.status[scene] in ("ok", "unlabelled"):
        step = max(1, scene_shape(store, scene, level)[1] // (2 * pixels))
        image, label = read_thinned(store, scene, level, step)
    else:  # the store has no pixels of it
        size = (max(1, round(pixels * aspect_of(grid))), pixels)
        image = np.zeros((*size, len(store.meta.bands)), np.uint8)
        label = np.full(size, NODATA, np.uint8)
    rgb = display_rgb(store, image, brighten)
    width = None
    if grid is not None:
        width = grid.width * grid.gsd_m()[0]
        flips = north_up(grid)
        rgb, image, label = rgb[flips], image[flips], label[flips]
    nodata = (image == 0).all(axis=2)
    return SceneView(store, scene, rgb, nodata, label, aspect_of(grid), width)


def _header(store: StoreReader, level: int) -> tuple[str, str, str]:
    """Return the title, the line below it and the note at the bottom."""
    meta, tiles = store.meta, store.tiles
    splits = scene_splits(store)
    shares = {name: int((splits == i).sum()) for i, name in enumerate(SPLITS)}
    counts = ", ".join(f"{scenes} {name}" for name, scenes in shares.items() if scenes)
    gsd_x, gsd_y = meta.gsd_m
    facts = [
        f"{counted(len(store.scenes), 'scene')} ({counts})",
        f"{counted(len(tiles), 'tile')} of {meta.tile} px",
        f"levels {', '.join(map(str, meta.levels))}",
        f"{gsd_x:.2f} × {gsd_y:.2f} m per pixel",
        f"{meta.share_name} {road_fraction(store):.1%}",
    ]
    bands = [meta.bands[i] for i in natural_bands(meta.bands)]
    note = f"shown at level {level}, bands {', '.join(bands)}, brightness adjusted for display"
    return store.title, "  ·  ".join(facts), note
