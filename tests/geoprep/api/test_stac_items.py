"""Test building a store from STAC items whose COGs are on a web server."""

import numpy as np
import pytest
import rasterio
from helpers.factory import PLACES, texture, write_roads
from helpers.items import collection_of, sentinel_item, write_json
from helpers.web import served

import geoprep
from geoprep.errors import SourceError, UsageError
from geoprep.store.scenes import read_image

NAMES = ("S2A_37UDB_20240503_0_L2A", "S2B_37UDB_20240501_0_L2A")
PLACE = PLACES["utm"]
pytestmark = pytest.mark.filterwarnings("ignore:.* are road:geoprep.errors.GeoprepWarning")
SMALL = {"tile": 64, "levels": 1, "asset": "visual", "progress": False}


@pytest.fixture
def site(tmp_path):
    """Yield a served folder of COGs, and the address of a search result that names them."""
    folder = tmp_path / "www"
    with served(folder) as (address, gets):
        for seed, name in enumerate(NAMES):
            path = folder / "cogs" / name / "TCI.tif"
            path.parent.mkdir(parents=True)
            grid = {"crs": PLACE.crs, "transform": PLACE.transform, "width": 64, "height": 64}
            with rasterio.open(path, "w", driver="COG", dtype="uint8", count=3, **grid) as file:
                file.write(texture(64, 64, seed=seed).transpose(2, 0, 1))
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


def test_several_assets_are_refused(site, tmp_path):
    _, search, _ = site
    given = {**SMALL, "asset": ["red", "green"]}
    with pytest.raises(SourceError, match=r"no asset red,green\. Choose a single one"):
        geoprep.build_zarr(images=search, out=tmp_path / "a.zarr", **given)


def test_an_asset_that_cannot_be_downloaded_fails_its_scene(site, labels, tmp_path):
    folder, search, _ = site
    (folder / "cogs" / NAMES[0] / "TCI.tif").unlink()
    store = geoprep.build_zarr(images=search, labels=labels, out=tmp_path / "a.zarr", **SMALL)
    assert store.summary.statuses == {"failed": 1, "ok": 1}
    (issue,) = store.summary.issues
    assert "cannot be downloaded" in str(issue)


def test_stores_of_other_images_have_no_times(tmp_path):
    geoprep.synthesize("moscow", scenes=1, out=tmp_path, size=64, progress=False)
    store = geoprep.build_zarr("moscow", source=tmp_path, out=tmp_path / "a.zarr", progress=False)
    assert "datetimes" not in store.reader.meta.build
    with pytest.raises(UsageError, match="`asset` needs `images`"):
        geoprep.build_zarr("moscow", source=tmp_path, asset="visual")
