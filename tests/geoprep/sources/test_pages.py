"""Files of several images: pages of a TIFF, variables of netCDF."""

import numpy as np
import pytest
from helpers.factory import PLACES, build_of, texture, write_image
from PIL import Image
from rasterio.shutil import copy as copy_raster

from geoprep.errors import ImageError
from geoprep.imagery.headers import describe
from geoprep.sources.own_images import images_and_labels
from geoprep.storage.inputs import open_image

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
VALUES = texture(60, 80, 4)


def stack(path, pages):
    """Write pages (y, x) or (y, x, 3) into one TIFF."""
    first, *others = [Image.fromarray(np.ascontiguousarray(page)) for page in pages]
    first.save(path, save_all=True, append_images=others)
    return path


@pytest.mark.parametrize("kind", ["sizes", "colours", "bands"])
def test_pages_are_refused_and_read_by_their_addresses(tmp_path, kind, monkeypatch):
    pages = {
        "sizes": [VALUES[..., 0], VALUES[:30, :40, 1]],
        "colours": [VALUES[..., :3], VALUES[..., 1:]],
        "bands": [VALUES[..., 0], VALUES[..., 1]],
    }[kind]
    path = stack(tmp_path / "stack.tif", pages)
    with pytest.raises(ImageError, match=r"stack\.tif: has 2 images.*GTIFF_DIR:2:"):
        describe(str(path))
    monkeypatch.chdir(tmp_path)
    first, second = images_and_labels(["GTIFF_DIR:1:stack.tif", "GTIFF_DIR:2:stack.tif"]).scenes
    assert (first.id, second.id) == ("stack_1", "stack_2")
    with open_image(second.image) as dataset:
        np.testing.assert_array_equal(np.moveaxis(dataset.read(), 0, -1).squeeze(), pages[1])
    assert describe(second.image).files == (second.image, str(path))


@pytest.mark.parametrize("quote", ["", '"'])
def test_variables_of_netcdf_fail_one_scene_and_are_read_by_their_addresses(
    tmp_path, quote, monkeypatch
):
    source = write_image(tmp_path / "x.tif", VALUES[..., :3], PLACES["utm"])
    copy_raster(source, tmp_path / "scene.nc", driver="netCDF")
    found = images_and_labels([str(source), str(tmp_path / "scene.nc")])
    store = build_of(tmp_path / "s.zarr", found, rescale="none", levels=1)
    scenes = dict(zip(store.scenes.id, store.scenes.reason, strict=True))
    assert "scene.nc: has 3 images: give the address of one" in scenes["scene"]
    monkeypatch.chdir(tmp_path)
    (scene,) = images_and_labels([f"NETCDF:{quote}scene.nc{quote}:Band2"]).scenes
    assert scene.id == "scene_Band2"
    with open_image(scene.image) as dataset:
        np.testing.assert_array_equal(dataset.read(1), VALUES[..., 1])


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("NETCDF:gone.nc:red", "no such file; check the path"),
        ("GTIFF_DIR:9:stack.tif", "cannot be read as an image"),
    ],
)
def test_an_address_of_no_image_is_told_from_one_of_no_file(tmp_path, monkeypatch, address, says):
    stack(tmp_path / "stack.tif", [VALUES[..., 0], VALUES[:30, :40, 1]])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImageError, match=says):
        describe(address)
