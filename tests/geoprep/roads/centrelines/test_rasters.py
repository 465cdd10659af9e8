"""A raster says itself, or shows by its values, what it holds."""

import json

import numpy as np
import pytest
from affine import Affine
from helpers.roads import write_raster
from PIL import Image

from geoprep.errors import ImageError, UsageError
from geoprep.roads.centrelines import open_raster

MAP_BANDS = [*(f"road, {10 * i + 1}–{10 * i + 10} mph" for i in range(7)), "road", "speed"]


def kind_of(path, **more):
    with open_raster(path, pixel_size_m=None, **more) as raster:
        return raster.kind


def test_a_map_is_read_by_its_tags(tmp_path):
    classes = [{"band": i, "name": "", "mph": 10.0 * i} for i in range(1, 8)]
    bands = np.zeros((9, 20, 20), np.uint8)
    bands[7], bands[7, 0, 0] = 200, 255
    path = write_raster(
        tmp_path / "map.tif",
        bands,
        names=MAP_BANDS,
        tags={"CLASSES": json.dumps(classes)},
        nodata=255,
    )
    with open_raster(path, pixel_size_m=None) as raster:
        assert raster.kind == "probability"
        assert (raster.road, raster.speed) == ((8,), 9)
        assert raster.classes == tuple((i, 10.0 * i) for i in range(1, 8))
        assert raster.gsd_m == pytest.approx((1, 1), rel=1e-3)
        evidence = raster.evidence(0, 0, 20, 20)
    assert evidence[0, 0] == 0  # no data is no road
    assert (evidence.ravel()[1:] == 200).all()


def test_single_bands_are_told_apart_by_their_values(tmp_path):
    rng = np.random.default_rng(0)
    mask = (rng.random((30, 30)) < 0.2).astype(np.uint8)
    assert kind_of(write_raster(tmp_path / "m1.tif", mask)) == "mask"
    assert kind_of(write_raster(tmp_path / "m255.tif", mask * 255)) == "mask"
    assert kind_of(write_raster(tmp_path / "empty.tif", mask * 0)) == "mask"
    speeds = mask * rng.choice([20, 25, 35, 65], (30, 30)).astype(np.uint8)
    speeds[0, 0] = 255
    assert kind_of(write_raster(tmp_path / "s.tif", speeds)) == "speed"
    grey = rng.integers(0, 255, (30, 30), np.uint8)
    assert kind_of(write_raster(tmp_path / "p.tif", grey)) == "probability"
    shares = rng.random((30, 30)).astype(np.float32)
    assert kind_of(write_raster(tmp_path / "f.tif", shares)) == "probability"
    assert kind_of(write_raster(tmp_path / "f.tif", shares), kind="mask") == "mask"


def test_probabilities_of_any_type_become_bytes(tmp_path):
    values = np.array([[0, 0.5, 1, np.nan]], np.float32)
    with open_raster(
        write_raster(tmp_path / "f.tif", values), pixel_size_m=None, kind="probability"
    ) as r:
        assert r.evidence(0, 0, 1, 4).tolist() == [[0, 128, 255, 0]]
    wide = np.array([[0, 32768, 65535, 77]], np.uint16)
    path = write_raster(tmp_path / "w.tif", wide, nodata=77)
    with open_raster(path, pixel_size_m=None, kind="probability") as r:
        assert r.evidence(0, 0, 1, 4).tolist() == [[0, 128, 255, 0]]


def test_numbers_that_are_no_probabilities_are_refused(tmp_path):
    path = write_raster(tmp_path / "f.tif", np.array([[0, 7.5]], np.float32))
    with (
        open_raster(path, pixel_size_m=None, kind="probability") as raster,
        pytest.raises(ImageError, match=r"f.tif: 7.5 is no probability.*--kind"),
    ):
        raster.evidence(0, 0, 1, 2)


def test_beyond_the_border_is_like_the_border(tmp_path):
    values = np.arange(1, 10, dtype=np.uint8).reshape(3, 3) * 20
    with open_raster(write_raster(tmp_path / "p.tif", values), pixel_size_m=None) as raster:
        padded = np.pad(values, 4, mode="edge")
        for top in range(-4, 6):
            for left in (-4, -1, 2, 5):
                expected = padded[top + 4 : top + 6, left + 4 : left + 6]
                got = raster.evidence(top, left, *expected.shape)
                assert np.array_equal(got, expected)


def test_cresi_bands_are_known_by_their_number(tmp_path):
    with open_raster(
        write_raster(tmp_path / "c.tif", np.zeros((8, 4, 4), np.uint8)), pixel_size_m=None
    ) as raster:
        assert raster.road == (8,)
        assert [band for band, _ in raster.classes] == list(range(1, 8))


def test_colours_are_no_roads(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path)
    with pytest.raises(ImageError, match=r"photo.png: has 3 bands.*--band"):
        kind_of_png(path)
    with open_raster(path, pixel_size_m=1.0, band=2) as raster:
        assert raster.road == (2,)
    with pytest.raises(UsageError, match="no band 4"), open_raster(path, band=4, pixel_size_m=1.0):
        pass


def kind_of_png(path):
    with open_raster(path, pixel_size_m=1.0) as raster:
        return raster.kind


def test_a_place_or_a_pixel_size_and_not_both(tmp_path):
    path = tmp_path / "mask.png"
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(path)
    with pytest.raises(UsageError, match="--pixel-size METRES"):
        kind_of(path)
    placed = write_raster(tmp_path / "placed.tif", np.zeros((4, 4), np.uint8))
    with pytest.raises(UsageError, match="leave --pixel-size out"):
        kind_of_png(placed)


def test_degrees_are_measured_on_the_ground(tmp_path):
    path = write_raster(
        tmp_path / "d.tif",
        np.zeros((100, 100), np.uint8),
        crs="EPSG:4326",
        transform=Affine(2.7e-6, 0, -115.17, 0, -2.7e-6, 36.24),
    )
    with open_raster(path, pixel_size_m=None) as raster:
        assert raster.gsd_m == pytest.approx((0.2427, 0.2996), abs=1e-4)


def test_what_is_no_raster_is_named(tmp_path):
    path = tmp_path / "x.tif"
    path.write_text("no")
    with pytest.raises(ImageError, match=r"x.tif: not readable as a raster"):
        kind_of(path)
