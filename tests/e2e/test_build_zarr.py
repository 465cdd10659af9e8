"""``geoprep build-zarr`` as a user meets it: exit statuses, messages, real data."""

import shutil
from functools import partial

import numpy as np
import pytest
import rasterio
from helpers.rasters import write_raster

from geoprep.sources.cities import CITIES
from geoprep.speed import BINNED_TABLE, CONTINUOUS_TABLE
from geoprep.synth import synthesise


@pytest.fixture
def geoprep_here(here, tmp_path):
    """Return a function that runs it in this process."""
    return partial(here, "geoprep", folder=tmp_path)


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    """Six small scenes of a synthetic Moscow."""
    folder = tmp_path_factory.mktemp("city")
    synthesise(folder, CITIES["moscow"], scenes=6, seed=1, size=260)
    return folder


def test_builds_says_what_it_made_and_is_content_the_second_time(city, tmp_path, geoprep_here):
    words = ("build-zarr", "--city", "moscow", "--source", city)
    first = geoprep_here(*words)
    assert "6 ok" in first.stdout
    assert "built" in first.stdout
    again = geoprep_here(*words)
    assert "already complete" in again.stdout
    assert not (tmp_path / "moscow.zarr.build").exists()


def test_real_chip_of_las_vegas(shared_data, tmp_path, geoprep_here):
    words = ("build-zarr", "--city", "vegas", "--source", shared_data, "--rescale", "none")
    done = geoprep_here(*words)
    assert "img99" in done.stdout  # a label without an image is reported
    chip = tmp_path / "img0.tif"
    geoprep_here("export", tmp_path / "vegas.zarr", "--scene", "img0", "--out", chip)
    with (
        rasterio.open(chip) as made,
        rasterio.open(next((shared_data / "AOI_2_Vegas" / "PS-RGB").glob("*img0.tif"))) as source,
    ):
        assert made.transform == source.transform
        assert made.crs == source.crs
        pixels, original = made.read(), source.read([1, 2, 3])
    # Its alpha band says that every pixel is valid, so even black ones are imagery.
    assert np.array_equal(pixels, np.maximum(original, 1))
    with rasterio.open(tmp_path / "img0_speed.tif") as made:
        speed = made.read(1)
    for coding, table in (("continuous", CONTINUOUS_TABLE), ("binned7", BINNED_TABLE)):
        with rasterio.open(shared_data / "expected" / f"img0_{coding}.tif") as expected:
            assert np.array_equal(table[speed], expected.read(1))


def test_a_build_in_which_every_scene_is_skipped_exits_1(tmp_path, geoprep_here):
    for name in "ab":
        write_raster(tmp_path / "black" / f"{name}.tif", np.zeros((3, 64, 64), np.uint8), crs=None)
    own = ["build-zarr", "--images", "black", "--pixel-size", "1", "--out", "b.zarr"]
    assert "2 skipped" in geoprep_here(*own, status=1).stdout


def test_unpacked_inputs_are_named(city, tmp_path, geoprep_here):
    archive = shutil.make_archive(str(tmp_path / "set"), "gztar", city)
    own = ["build-zarr", "--images", f"{archive}!/**/*.tif", "--out", tmp_path / "m.zarr"]
    done = geoprep_here(*own)
    assert "which may be deleted: " in done.stdout
    assert (tmp_path / "m.zarr.source").is_dir()
