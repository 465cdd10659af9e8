"""The order of scenes, and the places where they may not be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import geoprep as gp
from geoprep.errors import UsageError
from geoprep.sources.own_images import images_and_labels
from geoprep.sources.scene import natural_key, refuse_inside


@given(st.lists(st.text(), unique=True), st.randoms())
def test_the_order_does_not_depend_on_how_files_were_listed(names, random):
    shuffled = list(names)
    random.shuffle(shuffled)
    assert sorted(shuffled, key=natural_key) == sorted(names, key=natural_key)


@pytest.mark.parametrize("place", ["s.zarr", "s.zarr.build/deep", "link"])
def test_inputs_in_the_store_that_is_built_are_refused_and_stay(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.zarr").mkdir()
    (tmp_path / "link").symlink_to("s.zarr")
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    image = tmp_path / place / "im.tif"
    image.write_bytes(b"the only copy")
    with pytest.raises(UsageError, match=r"im\.tif lies in s\.zarr, which this build writes"):
        gp.build_zarr(images=f"{place}/*.tif", out="s.zarr", overwrite=True, progress=False)
    assert image.read_bytes() == b"the only copy"


def test_neighbours_of_the_store_are_no_inputs_in_it(tmp_path):
    for name in ("s.zarr.source/a.tif", "s.zarr2/b.tif", "s.zarr.tif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = images_and_labels([f"{tmp_path}/**/*.tif"])
    refuse_inside([found], tmp_path / "s.zarr")
    with pytest.raises(UsageError, match=r"s3://b/s\.zarr/a\.zip"):
        refuse_inside([found], "s3://b/s.zarr/", ["s3://b/s.zarr/a.zip"])
