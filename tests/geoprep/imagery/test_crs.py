"""The CRS of an image is the one that it states, with every parameter."""

import re
from xml.sax.saxutils import escape

import numpy as np
import pyproj
import pytest
import rasterio
from affine import Affine
from helpers.factory import PLACES, Place, build_of, texture, write_image
from rasterio.crs import CRS
from rasterio.shutil import copy as copy_raster

from geoprep.crs import crs_name, to_lonlat
from geoprep.imagery.headers import describe
from geoprep.sources.scene import Scene
from geoprep.views.geotiff import export_scenes

SHIFTED = {
    "minna": "+proj=utm +zone=31 +ellps=clrk80 +towgs84=-92,-93,122,0,0,0,0 +units=m",
    "indian": "+proj=utm +zone=47 +a=6377276.345 +rf=300.8017 +units=m "
    "+towgs84=210,814,289,0,0,0,0",
    "dhdn": "+proj=tmerc +lon_0=9 +k=1 +x_0=3500000 +ellps=bessel +units=m "
    "+towgs84=582,105,414,1.04,0.35,-3.08,8.3",
}
"""CRSs with a datum shift of their own, for which GDAL finds codes without it."""


def image(folder, crs):
    place = Place(crs, Affine(0.5, 0, 500_000, 0, -0.5, 800_000))
    return write_image(folder / "a.tif", texture(40, 50), place)


@pytest.mark.parametrize("name", SHIFTED)
def test_a_datum_shift_of_its_own_is_kept(tmp_path, name):
    path = image(tmp_path, SHIFTED[name])
    grid = describe(str(path)).grid
    assert not grid.crs.startswith("EPSG:")
    code = f"EPSG:{CRS.from_wkt(grid.crs).to_epsg()}"
    lonlat, expected, without = (
        np.array(
            pyproj.Transformer.from_crs(crs, "EPSG:4326", always_xy=True).transform(*grid.centre)
        )
        for crs in (grid.crs, SHIFTED[name], code)
    )
    metres = (lonlat - expected) * 111_320
    assert np.abs(metres).max() < 0.01
    assert np.abs((without - expected) * 111_320).max() > 1
    assert to_lonlat(grid.crs).transform(*grid.centre) == pytest.approx(tuple(expected))
    store = build_of(tmp_path / "s.zarr", [Scene("a", str(path), None)])
    assert store.scenes.crs[0] == grid.crs
    assert not crs_name(SHIFTED[name]).startswith("EPSG:")


def test_a_shift_of_zero_is_none(tmp_path):
    path = image(tmp_path, "EPSG:25833")
    zero = "+proj=utm +zone=33 +ellps=GRS80 +towgs84=0,0,0,0,0,0,0 +units=m"
    vrt = tmp_path / "a.vrt"
    copy_raster(path, vrt, driver="VRT")
    vrt.write_text(re.sub("<SRS.*?</SRS>", f"<SRS>{zero}</SRS>", vrt.read_text()))
    assert describe(str(vrt)).grid.crs == "EPSG:25833"


@pytest.mark.parametrize("code", [32637, 4326, 3857, 28407, 27700, 4979])
@pytest.mark.parametrize("version", ["", "WKT1_ESRI"])
def test_a_crs_of_an_authority_is_its_code(tmp_path, code, version):
    crs = CRS.from_epsg(code)
    place = PLACES["degrees"] if crs.is_geographic else PLACES["utm"]
    crs = CRS.from_wkt(crs.to_wkt(version=version)) if version else crs
    path = write_image(tmp_path / "a.tif", texture(40, 50), Place(crs, place.transform))
    assert describe(str(path)).grid.crs == f"EPSG:{code}"
    assert version or crs_name(crs.to_wkt()) == f"EPSG:{code}"


def test_a_crs_that_wkt_1_cannot_hold_is_wkt_2(tmp_path):
    rotated = "+proj=ob_tran +o_proj=longlat +o_lon_p=0 +o_lat_p=39.25 +lon_0=18 +ellps=sphere"
    path = write_image(
        tmp_path / "a.tif", texture(40, 50), Place(rotated, Affine(0.1, 0, 1, 0, -0.1, 4))
    )
    grid = describe(str(path)).grid
    assert pyproj.CRS(grid.crs) == pyproj.CRS.from_wkt(
        CRS.from_string(rotated).to_wkt(version="WKT2")
    )
    assert grid.crs.startswith("GEOGCRS")


@pytest.mark.parametrize(
    "crs",
    [
        pyproj.CRS("EPSG:32637").to_3d().to_wkt(),
        "+proj=ob_tran +o_proj=longlat +o_lon_p=0 +o_lat_p=39.25 +lon_0=18 +ellps=sphere",
        "+proj=utm +zone=10 +ellps=clrk66 +nadgrids=@conus +units=m",
        "EPSG:32637",
    ],
)
def test_an_export_has_the_crs_of_its_image(tmp_path, crs):
    plain = write_image(tmp_path / "a.tif", texture(40, 50), PLACES["utm"])
    copy_raster(plain, tmp_path / "a.vrt", driver="VRT")
    vrt = (tmp_path / "a.vrt").read_text()
    stated = CRS.from_user_input(crs).to_wkt(version="WKT2_2019")
    (tmp_path / "a.vrt").write_text(re.sub("<SRS.*?</SRS>", f"<SRS>{escape(stated)}</SRS>", vrt))
    store = build_of(tmp_path / "s.zarr", [Scene("a", str(tmp_path / "a.vrt"), None)])
    (path,) = export_scenes(store, "a", tmp_path / "out.tif", what="image")
    with rasterio.open(path) as file:
        assert pyproj.CRS(file.crs.to_wkt(version="WKT2_2019")) == pyproj.CRS(stated)
    assert (tmp_path / "out.tif.aux.xml").exists() == (crs != "EPSG:32637")
