"""Arrays of xarray give the network of the same array in a file, whatever was done to them."""

import subprocess
import sys

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import xarray as xr
from affine import Affine

import geoprep
from geoprep.errors import UsageError

rioxarray = pytest.importorskip("rioxarray", reason="rioxarray is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Scales differ across bands:UserWarning")

GRID = Affine(0.5, 0, 400_000, 0, -0.5, 6_180_000)
ROTATED = Affine.translation(400_000, 6_180_000) * Affine.rotation(20) * Affine.scale(0.5, -0.5)


def write_prediction(path, bands, transform=GRID, **profile):
    """Write an array (band, y, x) as a prediction of roads, and of speeds if it has two bands."""
    count, height, width = bands.shape
    with rasterio.open(
        path, "w", driver="GTiff", count=count, height=height, width=width, dtype=bands.dtype,
        crs="EPSG:32637", transform=transform, nodata=255, **profile,
    ) as file:  # fmt: skip
        file.write(bands)
        file.descriptions = ["road", "speed"][:count]
        file.units = ["probability", "mph"][:count]
        file.scales = [1 / 255, 1.0][:count]
        file.update_tags(ROAD_THRESHOLD="0.3")
    return path


def prediction(count=2):
    """Return probabilities of 0.4 along a bent road with a side road, and speeds of 30 mph."""
    bands = np.zeros((2, 300, 400), np.uint8)
    for part in (np.s_[100:112, 20:300], np.s_[100:260, 288:300], np.s_[40:100, 80:92]):
        bands[0][part], bands[1][part] = 102, 30
    bands[:, :20, :50] = 255
    return bands[:count]


def network(source, **options):
    return geoprep.vectorize(source, close_gaps=False, progress=False, **options)


def assert_same(found, right):
    assert len(found) == len(right) > 1
    assert found.edges.geometry.geom_equals_exact(right.edges.geometry, 1e-6).all()
    np.testing.assert_array_equal(found.edges["speed_mph"], right.edges["speed_mph"])


OPERATIONS = {
    "nothing": (lambda a: a, np.s_[:, :, :], GRID),
    "slice": (
        lambda a: a[:, 30:, 10:390],
        np.s_[:, 30:, 10:390],
        GRID * Affine.translation(10, 30),
    ),
    "steps": (
        lambda a: a[:, ::2, ::2],
        np.s_[:, ::2, ::2],
        GRID * Affine.translation(-0.5, -0.5) * Affine.scale(2),
    ),
    "sorted": (lambda a: a.sortby("y").sortby("x", ascending=False), np.s_[:, :, :], GRID),
    "transposed": (lambda a: a.transpose("x", "band", "y"), np.s_[:, :, :], GRID),
    "one band": (lambda a: a.sel(band=1), np.s_[:1], GRID),
    "other names": (lambda a: a.rename(x="lon", y="lat"), np.s_[:, :, :], GRID),
}


@pytest.mark.parametrize(
    ("name", "masked"),
    [*((name, True) for name in OPERATIONS), ("slice", False), ("sorted", "scaled")],
)
def test_a_changed_array_gives_the_network_of_its_file(tmp_path, name, masked):
    """The threshold that the file states, 0.3, counts; by default these are no roads."""
    change, part, transform = OPERATIONS[name]
    path = write_prediction(tmp_path / "p.tif", prediction())
    right = write_prediction(tmp_path / "right.tif", prediction()[part], transform)
    kind = {"mask_and_scale": True} if masked == "scaled" else {"masked": masked}
    with rioxarray.open_rasterio(path, **kind) as array:
        assert_same(network(change(array)), network(right))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["coarsen", "interp"])
def test_a_resampled_array_lies_where_its_coordinates_are(tmp_path, name, masked):
    path = write_prediction(tmp_path / "p.tif", prediction(1)[:, 20:])
    with rioxarray.open_rasterio(path, masked=masked) as array:
        if name == "coarsen":
            array, transform = array.coarsen(x=2, y=2).mean(), GRID * Affine.scale(2)
        else:
            array = array.interp(x=array.x.values[:-1] + 0.25, y=array.y.values[:-1] - 0.25)
            transform = GRID * Affine.translation(0.5, 0.5)
        values = array.values.astype("float32")
        assert_same(
            network(array), network(write_prediction(tmp_path / "r.tif", values, transform))
        )


@pytest.mark.parametrize("sliced", [False, True])
def test_a_rotated_array_keeps_its_transform(tmp_path, sliced):
    path = write_prediction(tmp_path / "p.tif", prediction(), ROTATED)
    part, shift = (np.s_[:, 30:, 10:], (10, 30)) if sliced else (np.s_[:, :, :], (0, 0))
    right = write_prediction(
        tmp_path / "r.tif", prediction()[part], ROTATED * Affine.translation(*shift)
    )
    with rioxarray.open_rasterio(path) as array:
        changed = array[part] if sliced else array.drop_vars(["xc", "yc"])
        assert_same(network(changed), network(right))


def test_the_result_is_the_same_without_rioxarray(tmp_path):
    path = write_prediction(tmp_path / "p.tif", prediction())
    with rioxarray.open_rasterio(path) as array:
        part = array[0, 30:, ::2]
        part.attrs.update(
            long_name="road", units="probability", scale_factor=part.attrs.pop("scales")[0]
        )
        part.to_dataset(name="road").to_zarr(tmp_path / "road.zarr", zarr_format=2)
        right = network(part)
    code = (
        "import sys, xarray, geoprep\n"
        "array = xarray.open_dataset(sys.argv[1], engine='zarr', decode_coords='all')['road']\n"
        "found = geoprep.vectorize(array, close_gaps=False, progress=False)\n"
        "assert 'rioxarray' not in sys.modules\n"
        "found.to_file(sys.argv[2])"
    )
    files = tmp_path / "road.zarr", tmp_path / "found.gpkg"
    subprocess.run([sys.executable, "-c", code, *files], check=True)
    found = gpd.read_file(files[1], layer="edges")
    assert found.geometry.geom_equals_exact(right.edges.geometry.reset_index(drop=True), 1e-6).all()


def test_coordinates_that_are_not_a_grid_are_refused():
    xy = {"y": 6_180_000 - np.arange(300.0), "x": 400_000 + np.arange(400.0) ** 1.1}
    array = xr.DataArray(prediction(1)[0], xy)
    with pytest.raises(UsageError, match="not evenly spaced over 400 x 300"):
        network(array, crs="EPSG:32637")
    with pytest.raises(UsageError, match="choose one of road"):
        network(array.to_dataset(name="road"))


def test_coordinates_suffice_where_the_crs_is_given(tmp_path):
    bands = prediction(1)
    xs, ys = GRID.c + 0.25 + np.arange(400) / 2, GRID.f - 0.25 - np.arange(300) / 2
    array = xr.DataArray(bands[0], {"y": ys, "x": xs}, attrs={"_FillValue": 255})
    options = {"kind": "probability", "threshold": 0.3, "high_threshold": 0.3}
    right = network(write_prediction(tmp_path / "p.tif", bands), **options)
    assert_same(network(array, crs="EPSG:32637", **options), right)
