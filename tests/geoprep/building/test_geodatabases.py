"""Test file geodatabases as labels: a folder, zipped, one of all images and one per image."""

from __future__ import annotations

import shutil

import geopandas
import pytest
import shapely
from helpers.factory import PLACES, texture, write_image

import geoprep
from geoprep.store.reader import StoreReader

PLACE = PLACES["utm"]
SIDE = 64
OPTIONS = {"rescale": "none", "val": 0.0, "levels": 1, "progress": False}


@pytest.fixture
def roads(tmp_path):
    """Return a frame with a road across the image a.tif, which is written."""
    write_image(tmp_path / "images/a.tif", texture(SIDE, SIDE), PLACE)
    ends = [PLACE.transform * (x, SIDE / 2) for x in (4, SIDE - 4)]
    line = [shapely.LineString(ends)]
    return geopandas.GeoDataFrame({"highway": ["primary"]}, geometry=line, crs=PLACE.crs)


def speeds(tmp_path, labels, name, **options):
    """Return the labels of a store that is built."""
    out = tmp_path / f"{name}.zarr"
    images = tmp_path / "images"
    geoprep.build_zarr(images=images, labels=tmp_path / labels, out=out, **OPTIONS | options)
    return StoreReader.open(out).speed(SIDE)[:]


def test_a_geodatabase_gives_what_a_geopackage_gives(tmp_path, roads):
    roads.to_file(tmp_path / "roads.gpkg")
    (tmp_path / "each").mkdir()
    roads.to_file(tmp_path / "each/a.gdb", driver="OpenFileGDB", layer="roads")
    for name in ("roads.gdb", "packed"):
        shutil.make_archive(str(tmp_path / name), "zip", tmp_path / "each")
    (tmp_path / "zipped").mkdir()
    shutil.copy(tmp_path / "roads.gdb.zip", tmp_path / "zipped/a.gdb.zip")
    right = speeds(tmp_path, "roads.gpkg", "right")
    assert (right == 45).any()
    places = ("each/a.gdb", "roads.gdb.zip", "packed.zip", "each", "each/*.gdb", "zipped")
    for number, place in enumerate(places):
        assert (speeds(tmp_path, place, f"{number}") == right).all(), place
    plan = geoprep.build_zarr(
        images=tmp_path / "images", labels=tmp_path / "packed.zip", out="x.zarr", dry_run=True
    )
    assert len(plan.unknown) == 1


def test_a_geodatabase_that_changes_is_another_input(tmp_path, roads):
    for highway, byte in (("primary", 45), ("residential", 25)):
        roads.assign(highway=highway).to_file(tmp_path / "a.gdb", driver="OpenFileGDB")
        (tmp_path / "a.gdb/x.lock").touch()
        assert (speeds(tmp_path, "a.gdb", "a", overwrite=True) == byte).any()
        shutil.rmtree(tmp_path / "a.gdb")
