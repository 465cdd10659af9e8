"""Test stores as notebooks use them: tables, pixels, pictures, reprs."""

import os
import shutil

import geopandas as gpd
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from affine import Affine
from helpers.web import served

import geoprep
from geoprep.errors import StoreError, UsageError

GRID = Affine(0.5, 0, 400_000, 0, -0.5, 6_000_000)


@pytest.fixture
def store(opened):
    return opened


def test_scenes_are_a_geodataframe_of_every_scene(store):
    scenes = store.scenes
    assert isinstance(scenes, gpd.GeoDataFrame)
    assert list(scenes.index) == [str(one) for one in store.reader.scenes.id]
    assert scenes.index.name == "scene"
    assert set(scenes["status"]) == {str(one) for one in store.reader.scenes.status}
    assert scenes["tiles"].sum() == len(store.reader.tiles)
    assert scenes.geometry.dropna().is_valid.all()
    assert scenes.crs.to_epsg() == 4326, "of several zones, each with its own CRS in the table"
    assert len(set(scenes["crs"]) - {""}) > 1


def test_scenes_of_one_crs_keep_it(built):
    store = built(GRID, tile=64, levels=1)
    assert store.scenes.crs.to_epsg() == 32637
    outline = store.scenes.geometry.iloc[0]
    assert outline.bounds == (400_000, 6_000_000 - 32, 400_000 + 48, 6_000_000)
    tiles = store.tiles
    assert tiles.geometry.union_all().symmetric_difference(outline).area == pytest.approx(0)


def test_tiles_are_in_the_order_of_the_store(store):
    tiles = store.tiles
    assert len(tiles) == len(store) == len(store.reader.tiles)
    assert tiles["scene"].tolist() == [
        str(store.reader.scenes.id[i]) for i in store.reader.tiles.scene
    ]
    assert set(tiles["split"]) <= {"train", "val", "test", "unused"}


def test_xarray_reads_the_pixels_of_a_level(store, monkeypatch):
    level = store.meta.levels[0]
    with monkeypatch.context() as patch:
        patch.setattr(gpd, "GeoDataFrame", None)  # no outline of a tile is needed
        data = store.to_xarray()
    assert isinstance(data, xr.Dataset)
    assert data.image.dims == ("tile", "y", "x", "band")
    assert data["band"].values.tolist() == list(store.meta.bands)
    assert data["scene"].values.tolist() == store.tiles["scene"].tolist()
    np.testing.assert_array_equal(data.speed[3].values, store.reader.speed(level)[3])
    train = data.isel(tile=(data.split == "train").values)
    assert set(train["scene"].values) <= set(store.scenes.index)
    with pytest.raises(UsageError, match="no level"):
        store.to_xarray(7)


@pytest.mark.parametrize(
    "key",
    [
        (2,),
        ([5, 1, 3], slice(4, 40, 3), 7),
        (slice(None, None, 4), 3, [8, 2], 1),
        (-1, -1, -1),
    ],
    ids=str,
)
def test_parts_of_tiles_are_those_of_the_whole_array(store, key):
    for name, axes in (("image", 4), ("speed", 3)):
        parts = dict(zip(("tile", "y", "x", "band")[:axes], key, strict=False))
        expected = xr.DataArray(
            store.reader.root[f"64/{name}"][:], dims=("tile", "y", "x", "band")[:axes]
        )
        xr.testing.assert_equal(
            store.to_xarray()[name]
            .isel(parts)
            .drop_vars(store.to_xarray().coords, errors="ignore"),
            expected.isel(parts),
        )


def test_xarray_reads_a_store_on_a_plain_web_server(small_store, store):
    with served(small_store.parent) as (address, _):
        remote = geoprep.open_store(f"{address}/{small_store.name}").to_xarray(32)
        np.testing.assert_array_equal(remote.image[5], store.to_xarray(32).image[5])


def test_xarray_does_not_take_a_missing_file_for_zeros(store_copy):
    shutil.rmtree(store_copy / "64/image/c/0")
    data = geoprep.open_store(store_copy).to_xarray()
    assert data.speed[0].values.any()
    with pytest.raises(StoreError, match=r"64/image/c/0.* is missing"):
        data.image[0].compute()


def test_pixels_of_every_level_are_where_the_scene_is(built, monkeypatch):
    """Transform, x, y and CRS are those of the level, and no outline is built for them."""
    store = built(GRID, tile=32, levels=2)
    monkeypatch.setattr("shapely.Polygon", None)
    data = store.to_xarray(level=16)
    assert data["transform"].values[1].tolist() == [1, 0, 400_016, 0, -1, 6_000_000]
    tile = data.isel(tile=1)
    assert tile["x"].values.tolist() == [400_016.5 + i for i in range(16)]
    assert tile["y"].values.tolist() == [5_999_999.5 - i for i in range(16)]
    assert tile["crs"] == "EPSG:32637"
    assert store.to_xarray()["x"].values[0, 0] == 400_000.25


def test_rotated_pixels_have_a_transform_and_no_x(built):
    grid = Affine(0.4, 0.3, 400_000, 0.3, -0.4, 6_000_000)
    data = built(grid, (64, 64), tile=64, levels=1).to_xarray()
    assert "x" not in data.coords
    assert data["transform"].values[0].tolist() == list(grid)[:6]


def test_plot_draws_image_and_label(store):
    mpl.use("agg")
    axes = store.plot()
    assert [one.get_title() for one in axes] == ["image", "speed"]
    with pytest.raises(UsageError, match="has no pixels"):
        store.plot(store.scenes.index[store.scenes["status"] == "failed"][0])


def test_reprs_say_what_is_in_the_store(store):
    text = repr(store)
    assert store.location in text
    assert f"{len(store):,} of {store.meta.tile}" in text
    assert len(text.splitlines()) <= 10
    assert "<table>" in store._repr_html_()


def test_a_store_is_a_path_for_loaders_and_functions_take_either(store, small_store, tmp_path):
    assert os.fspath(store) == str(small_store)
    assert geoprep.store_info(str(small_store)) == store.info()
    assert geoprep.export_footprints(store, tmp_path / "f.geojson").exists()
    with pytest.raises(UsageError, match="a page shows every scene"):
        geoprep.preview(small_store, tmp_path / "a.html", scenes=["city_1"])
