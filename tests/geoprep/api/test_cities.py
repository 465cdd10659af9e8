"""Test the functions that make, check, describe, draw and export from a notebook."""

import pytest

import geoprep
from geoprep.errors import UsageError


def test_a_store_is_checked_described_drawn_and_exported(small_store, tmp_path):
    store = geoprep.open_store(small_store)
    assert geoprep.check_store(store, progress=False).problems == ()
    assert geoprep.store_info(str(small_store)) == store.info()
    picture = geoprep.preview(store, tmp_path / "a.png", count=1)
    page = geoprep.preview(small_store, str(tmp_path / "a.html"), progress=False)
    assert picture.stat().st_size > 1000
    assert page.stat().st_size > 1000
    name = store.scenes.index[store.scenes["status"] == "ok"][0]
    level = store.meta.levels[0]
    written = geoprep.export_scenes(store, name, tmp_path / "one.tif", level=level)
    assert [path.name for path in written] == ["one.tif", "one_speed.tif"]
    assert geoprep.export_footprints(store, tmp_path / "f.geojson").exists()


def test_a_page_shows_every_scene(small_store, tmp_path):
    with pytest.raises(UsageError, match="a page shows every scene"):
        geoprep.preview(small_store, tmp_path / "a.html", scenes=["city_1"])
