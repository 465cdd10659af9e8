"""Test building a store from STAC items whose COGs are on a web server."""

import numpy as np
import pytest
import rasterio
from helpers.factory import PLACES, texture, write_roads
from helpers.items import collection_of, sentinel_item, write_json
from helpers.rasters import write_raster
from helpers.web import served

import geoprep
from geoprep.errors import StoreError
from geoprep.store.scenes import read_image

NAMES = ("S2A_37UDB_20240503_0_L2A", "S2B_37UDB_20240501_0_L2A")
PLACE = PLACES["utm"]
COG = {"driver": "COG", "crs": PLACE.crs, "transform": PLACE.transform}
pytestmark = pytest.mark.filterwarnings("ignore:.* are road:geoprep.errors.GeoprepWarning")
SMALL = {"tile": 64, "levels": 1, "asset": "visual", "rescale": "none", "progress": False}


@pytest.fixture
def site(tmp_path):
    """Yield a served folder of COGs, and the address of a search result that names them."""
    folder = tmp_path / "www"
    with served(folder) as (address, gets):
        for seed, name in enumerate(NAMES):
            pixels = texture(64, 64, seed=seed).transpose(2, 0, 1)
            write_raster(folder / "cogs" / name / "TCI.tif", pixels, **COG)
        items = [sentinel_item(name, f"{address}/cogs/{name}") for name in NAMES]
        write_json(folder / "v1" / "search", collection_of(*items))
        yield folder, f"{address}/v1/search?limit=2", gets


@pytest.fixture
def labels(tmp_path):
    (tmp_path / "labels").mkdir()
    for name in NAMES:
        write_roads(tmp_path / "labels" / f"{name}.geojson", PLACE, (64, 64))
    return tmp_path / "labels"


def test_a_search_result_becomes_a_store(site, labels, tmp_path):
    folder, search, gets = site
    out = tmp_path / "a.zarr"
    dry = geoprep.build_zarr(images=search, labels=labels, out=out, dry_run=True, **SMALL)
    assert (dry.scenes, dry.failures) == (2, ())
    assert not (tmp_path / "a.zarr.source").exists()
    store = geoprep.build_zarr(images=search, labels=labels, out=out, **SMALL)
    assert dict(store.scenes.status) == dict.fromkeys(NAMES, "ok")
    reader = store.reader
    assert reader.meta.build["datetimes"] == dict.fromkeys(NAMES, "2024-05-01T08:26:11.123000Z")
    for row, name in enumerate(reader.scenes.id):
        with rasterio.open(folder / "cogs" / name / "TCI.tif") as file:
            np.testing.assert_array_equal(read_image(reader, row), file.read().transpose(1, 2, 0))
    before = len(gets)
    again = geoprep.build_zarr(images=search, labels=labels, out=out, **SMALL)
    assert again.summary.state == "unchanged"
    assert {path.partition("?")[0] for path in gets[before:]} == {"/v1/search"}
    listed = folder / "v1" / "search"
    listed.write_text(listed.read_text().replace("2024-05-01T", "2024-05-02T"))
    with pytest.raises(StoreError, match="times of the STAC items have changed"):
        geoprep.build_zarr(images=search, labels=labels, out=out, **SMALL)
    store = geoprep.build_zarr(images=search, labels=labels, out=out, overwrite=True, **SMALL)
    times = store.reader.meta.build["datetimes"]
    assert times == dict.fromkeys(NAMES, "2024-05-02T08:26:11.123000Z")


STACKED = {**SMALL, "asset": ["red", "green"]}


def write_bands(folder, pixels):
    """Write the assets red and green of an item, of one band each."""
    for file, band in zip(("B04", "B03"), pixels.transpose(2, 0, 1), strict=True):
        write_raster(folder / f"{file}.tif", band, nodata=0, **COG)


@pytest.mark.parametrize("kind", ["server", "disk"])
def test_several_assets_are_the_bands_of_a_scene(site, labels, tmp_path, kind):
    folder, search, _ = site
    pixels = [texture(64, 64, seed=seed)[..., :2] | np.uint8(1) for seed in range(2)]
    for name, values in zip(NAMES, pixels, strict=True):
        write_bands(folder / "cogs" / name, values)
        item = sentinel_item(name, f"cogs/{name}") | {"links": []}
        write_json(folder / f"{name}.json", item)
    images = search if kind == "server" else f"{folder}/S2*.json"
    given = {"images": images, "labels": labels, "out": tmp_path / "a.zarr", **STACKED}
    assert geoprep.build_zarr(dry_run=True, **given).failures == ()
    store = geoprep.build_zarr(**given).reader
    assert store.meta.bands == ("red", "green")
    for row, values in enumerate(pixels):
        np.testing.assert_array_equal(read_image(store, row), values)
    assert geoprep.build_zarr(**given).summary.state == "unchanged"
    changed = pixels[1].copy()
    changed[5, 5, 1] ^= 2
    write_bands(folder / "cogs" / NAMES[1], changed)
    with pytest.raises(StoreError, match="images or labels have changed"):
        geoprep.build_zarr(**given)  # the second asset counts


def test_assets_that_do_not_fit_each_other_fail_their_scene(site, labels, tmp_path):
    folder, search, _ = site
    values = texture(64, 64, seed=1)[..., :2]
    for name in NAMES:
        write_bands(folder / "cogs" / name, values)
    one = folder / "cogs" / NAMES[0] / "B03.tif"
    with rasterio.open(one) as dataset:
        profile, band = dataset.profile, dataset.read()
    for changes in (
        {"transform": PLACE.transform @ PLACE.transform.translation(1, 0)},
        {"crs": "EPSG:32638"},
        {"count": 2},
        {"height": 63},
    ):
        shape = {**profile, **changes}
        with rasterio.open(one, "w", **shape) as dataset:
            dataset.write(np.resize(band, (shape["count"], shape["height"], 64)))
        out = tmp_path / "a.zarr"
        found = geoprep.build_zarr(images=search, labels=labels, out=out, dry_run=True, **STACKED)
        (failure,) = found.failures
        assert "B04.tif and" in str(failure)
        assert "B03.tif cannot be stacked: bands need the same extent and CRS" in str(failure)
        assert NAMES[0] in str(failure)
        assert "\n" not in str(failure)
        assert "\0" not in str(failure)


def test_an_asset_that_cannot_be_downloaded_fails_its_scene(site, labels, tmp_path):
    folder, search, _ = site
    (folder / "cogs" / NAMES[0] / "TCI.tif").unlink()
    store = geoprep.build_zarr(images=search, labels=labels, out=tmp_path / "a.zarr", **SMALL)
    assert store.summary.statuses == {"failed": 1, "ok": 1}
    (issue,) = store.summary.issues
    assert "cannot be downloaded" in str(issue)
