"""A scene as one xarray Dataset: the pixels of its GeoTIFF, read by windows."""

import numpy as np
import pyproj
import pytest
import rasterio
from affine import Affine
from hypothesis import assume, given
from hypothesis import strategies as st

import geoprep
from geoprep.store.tiles import TileReader

SCENES = ["city_border", "city_unlabelled", "utm_north", "utm_south", "utm_small"]
ROTATED = Affine(0.4, 0.3, 400_000, 0.3, -0.4, 6_000_000)


def transform_of(data):
    return Affine.from_gdal(*map(float, data.spatial_ref.attrs["GeoTransform"].split()))


@pytest.mark.parametrize("scene", SCENES)
def test_pixels_and_place_are_those_of_the_geotiff(opened, tmp_path, scene):
    data = opened.to_xarray(scene=scene)
    files = geoprep.export_scenes(opened, scene, tmp_path / "out.tif")
    assert list(data.data_vars) == ["image", "speed"][: len(files)]
    for variable, path in zip(data.data_vars.values(), files, strict=True):
        with rasterio.open(path) as made:
            pixels = made.read() if variable.name == "image" else made.read(1)
            np.testing.assert_array_equal(variable.values, pixels)
            assert variable.dtype == np.uint8
            assert variable.attrs["_FillValue"] == made.nodata
            assert transform_of(data) == made.transform
            crs = pyproj.CRS.from_wkt(data.spatial_ref.attrs["crs_wkt"])
            assert crs == pyproj.CRS.from_user_input(made.crs)
            for axis, at in (("x", (0, 3)), ("y", (3, 0))):
                centre = made.xy(*at)["xy".index(axis)]
                assert data[axis].values[3] == pytest.approx(centre, abs=1e-9)
    assert data.sizes["x"] == data["x"].size
    assert data["band"].values.tolist() == ["red", "green", "blue"]
    assert data.attrs["scene"] == scene


@given(data=st.data())
def test_any_index_gives_what_numpy_gives(opened, data):
    lazy = opened.to_xarray(scene="city_1").image
    whole = lazy.copy().values
    slices = st.tuples(*(st.slices(n) | st.integers(-n, n - 1) for n in lazy.shape))
    at = data.draw(slices)
    assume(whole[at].size)  # xarray itself has no empty slice backwards
    np.testing.assert_array_equal(lazy[at].values, whole[at])


def test_only_tiles_under_the_pixels_are_read(opened, monkeypatch):
    read, original = [], TileReader.read
    monkeypatch.setattr(TileReader, "read", lambda *at: read.append(at[1]) or original(*at))
    data = opened.to_xarray(scene="city_3")
    assert not read
    corner = data.image[:, :5, :5]
    assert corner.values.any()
    assert len(read) == 1
    corner.values  # noqa: B018 - kept since it was read
    assert len(read) == 1
    dask = pytest.importorskip("dask", reason="dask is not installed")
    with dask.config.set(scheduler="synchronous"):
        opened.to_xarray(scene="city_3").chunk(x=56, y=56).speed[:5, :5].compute()
    assert len(read) == 2


@pytest.mark.parametrize("scene", SCENES)
def test_rioxarray_finds_crs_transform_and_nodata(opened, sources, scene):
    pytest.importorskip("rioxarray", reason="rioxarray is not installed")
    data = opened.to_xarray(scene=scene)
    with rasterio.open(sources / f"{scene}.tif") as source:
        assert data.rio.crs == source.crs
        assert data.rio.transform() == source.transform
        assert sorted(data.image.rio.bounds()) == pytest.approx(sorted(source.bounds))
        assert data.image.rio.nodata == 0
