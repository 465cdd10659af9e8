"""Test georeferencing, UTM zones and boxes."""

import pyproj
import pytest
from affine import Affine
from rasterio.crs import CRS

from geoprep.crs import is_georeferenced, utm_crs

METRES = Affine(0.5, 0, 4e5, 0, -0.5, 6.2e6)
LOCAL = 'LOCAL_CS["site",UNIT["metre",1]]'
GEOCENTRIC = "EPSG:4978"


@pytest.mark.parametrize(
    "crs",
    [
        "EPSG:4326",
        "EPSG:32637",
        CRS.from_epsg(28407),
        pyproj.CRS(3857),
        "EPSG:7415",  # projected, with heights
        CRS.from_wkt(pyproj.CRS("+proj=utm +zone=37 +ellps=intl +towgs84=1,2,3").to_wkt()),
    ],
)
def test_geographic_and_projected_crs_with_a_transform_are_georeferenced(crs):
    assert is_georeferenced(crs, METRES)


@pytest.mark.parametrize("transform", [Affine.identity(), Affine(0, 0, 4e5, 0, 0, 6.2e6)])
@pytest.mark.parametrize("crs", ["EPSG:4326", CRS.from_epsg(32637)])
def test_a_crs_without_a_usable_transform_is_not_georeferenced(crs, transform):
    assert not is_georeferenced(crs, transform)


@pytest.mark.parametrize(
    "crs",
    [
        None,
        "",
        CRS(),
        GEOCENTRIC,
        CRS.from_epsg(4978),
        LOCAL,
        CRS.from_wkt(LOCAL),
        "EPSG:5773",
        "x",
    ],
)
def test_no_geocentric_local_vertical_or_unreadable_crs_is_georeferenced(crs):
    assert not is_georeferenced(crs, METRES)


@pytest.mark.parametrize(
    ("lon", "lat", "crs"),
    [
        (39.28, 6.8, "EPSG:32637"),
        (39.28, -6.8, "EPSG:32737"),
        (-180, 0, "EPSG:32601"),
        (179.99, 10, "EPSG:32660"),
        (180, 10, "EPSG:32601"),
        (185, 10, "EPSG:32601"),
    ],
)
def test_the_utm_zone_of_a_place(lon, lat, crs):
    assert utm_crs(lon, lat) == crs
