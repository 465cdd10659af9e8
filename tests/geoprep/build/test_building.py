"""Test building a store from a notebook."""

import pytest

import geoprep
from geoprep.errors import UsageError


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    folder = tmp_path_factory.mktemp("city")
    geoprep.synthesize("moscow", scenes=3, out=folder, size=64, progress=False)
    return folder


def test_a_city_becomes_a_store_with_its_summary(city, tmp_path, capsys):
    out = tmp_path / "moscow.zarr"
    store = geoprep.build_zarr("moscow", source=city, out=out, tile=64, levels=1, progress=False)
    assert len(store.scenes) == 3
    assert store.summary.state == "built"
    assert store.summary.issues == ()
    assert capsys.readouterr() == ("", "")
    again = geoprep.build_zarr(city="moscow", source=str(city), out=str(out), tile=64, levels=1)
    assert again.summary.state == "unchanged"


def test_contradictions_name_keywords(tmp_path):
    with pytest.raises(UsageError, match="`city` or `images`"):
        geoprep.build_zarr(out=tmp_path / "a.zarr")
    with pytest.raises(UsageError, match="`out`"):
        geoprep.build_zarr(images=tmp_path, progress=False)
    with pytest.raises(TypeError, match="tiles"):
        geoprep.build_zarr("moscow", tiles=64)
