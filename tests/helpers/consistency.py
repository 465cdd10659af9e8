"""What every built store must satisfy: pixels follow the rules, tables follow from the pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from geoprep.grid import Windows
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import scene_grid, tiles_of
from geoprep.verify.store_check import verify

TRAIN, UNUSED = 0, 3


def assert_consistent(location: str | Path) -> None:
    """Check pixels against the rules of the format, and all tables against the pixels."""
    assert verify(location, workers=1).problems == ()
    store = StoreReader.open(location)
    status = store.scenes.status[store.tiles.scene]
    for level in store.meta.levels:
        images, labels = store.image(level)[...], store.label(level)[...]
        valid = (images != 0).all(axis=-1)
        assert not images[~valid].any(), "a pixel is nodata in all bands or in none"
        assert (labels[~valid] == 255).all(), "nodata has no label"
        assert (labels[status != "ok"] == 255).all(), "only scenes that are ok have labels"
        assert not valid[~np.isin(status, ("ok", "unlabelled"))].any()
        found = set(np.unique(labels).tolist())
        if store.meta.has_classes:
            assert found <= {*range(len(store.meta.class_names)), 255}
        elif not store.meta.has_speeds:
            assert found <= {0, 254, 255}
        if level == store.meta.levels[0]:
            _check_statistics(store, images, labels, valid, (status == "ok"))
    for index in range(len(store.scenes)):
        _check_scene(store, index)


def _check_statistics(store, images, labels, valid, ok) -> None:
    counted = ok & (store.tiles.split == TRAIN)
    for band, expected in enumerate(store.histogram_band):
        values = images[counted][valid[counted]][:, band]
        np.testing.assert_array_equal(np.bincount(values, minlength=256), expected)
    np.testing.assert_array_equal(
        np.bincount(labels[counted].ravel(), minlength=256), store.histogram_label
    )
    np.testing.assert_allclose(store.tiles.valid_fraction, valid.mean((1, 2)), atol=1e-7)
    per_tile = np.array([np.bincount(tile.ravel(), minlength=256) for tile in labels])
    known = per_tile[:, :255].sum(1)
    road = known - per_tile[:, 0] if store.meta.has_background else known
    share = np.divide(road, known, out=np.zeros(len(known)), where=known > 0)
    np.testing.assert_allclose(store.tiles.road_fraction, share, atol=1e-7)
    if store.meta.has_classes:
        names = len(store.meta.class_names)
        np.testing.assert_array_equal(store.class_pixels, per_tile[:, :names])


def _check_scene(store: StoreReader, index: int) -> None:
    tiles, scenes, side = store.tiles, store.scenes, store.meta.tile
    rows, with_pixels = tiles_of(tiles, index), scenes.status[index] in ("ok", "unlabelled")
    assert bool(scenes.reason[index]) == (scenes.status[index] != "ok")
    shape = tiles.row[rows].max() + side, tiles.col[rows].max() + side
    splits_of_pixel = np.zeros(shape, np.uint8)
    for top, left, split in zip(tiles.row[rows], tiles.col[rows], tiles.split[rows], strict=True):
        if split != UNUSED:
            splits_of_pixel[top : top + side, left : left + side] |= 1 << split
    assert np.isin(splits_of_pixel, (0, 1, 2, 4)).all(), "a pixel of two splits"
    grid = scene_grid(store, index)
    if grid is None:
        assert not with_pixels
        return
    assert np.isfinite(scenes.limits[index]).all() or not with_pixels
    windows = list(zip(tiles.row[rows].tolist(), tiles.col[rows].tolist(), strict=True))
    assert windows == [*Windows(grid.shape, side, store.meta.overlap)]
    affines = [grid.window(*window, 1, 1).transform[:6] for window in windows]
    pixel = np.abs(tiles.transform[rows.start, [0, 1, 3, 4]]).max()
    np.testing.assert_allclose(tiles.transform[rows], affines, atol=1e-3 * pixel)
    np.testing.assert_allclose(grid.bounds, scenes.bounds[index], atol=1e-3 * pixel)
