"""The order of scenes, and the places where they may not be."""

import pytest
from helpers.factory import texture, write_image
from hypothesis import given
from hypothesis import strategies as st

import geoprep as gp
from geoprep.errors import StoreError
from geoprep.sources.scene import natural_key


@given(st.lists(st.integers(0, 10**6)))
def test_numbers_sort_by_size(numbers):
    names = sorted((f"chip{n}" for n in numbers), key=natural_key)
    assert names == [f"chip{n}" for n in sorted(numbers)]


@given(st.lists(st.text(), unique=True), st.randoms())
def test_the_order_does_not_depend_on_how_files_were_listed(names, random):
    shuffled = list(names)
    random.shuffle(shuffled)
    assert sorted(shuffled, key=natural_key) == sorted(names, key=natural_key)


@pytest.mark.parametrize("place", ["s.zarr", "link"])
def test_inputs_in_the_store_that_is_built_are_refused_and_stay(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.zarr").mkdir()
    (tmp_path / "link").symlink_to("s.zarr")
    image = write_image(tmp_path / place / "im.tif", texture(64, 64))
    content = image.read_bytes()
    with pytest.raises(StoreError, match=r"s\.zarr exists and is not a geoprep store"):
        gp.build_zarr(images=f"{place}/*.tif", out="s.zarr", overwrite=True, progress=False)
    assert image.read_bytes() == content
