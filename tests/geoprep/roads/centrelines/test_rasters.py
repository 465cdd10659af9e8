"""Test how rasters are read: their kind from tags or values, their georeference, their warnings."""

import json

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from helpers.rasters import write_raster
from PIL import Image

from geoprep.errors import ImageError, UsageError
from geoprep.options import made
from geoprep.roads.centrelines.opening import open_raster
from geoprep.roads.options import RasterOptions, ScoreOptions

PREDICTION_BANDS = [*(f"road, {10 * i + 1}–{10 * i + 10} mph" for i in range(7)), "road", "speed"]


def kind_of(path, **more):
    return open_raster(path, RasterOptions(**more)).kind


def test_a_prediction_is_read_by_its_tags(tmp_path):
    classes = [{"band": i, "name": "", "mph": 10.0 * i} for i in range(1, 8)]
    bands = np.zeros((9, 20, 20), np.uint8)
    bands[7], bands[7, 0, 0] = 200, 255
    path = write_raster(
        tmp_path / "prediction.tif",
        bands,
        names=PREDICTION_BANDS,
        tags={"CLASSES": json.dumps(classes)},
        nodata=255,
    )
    raster = open_raster(path)
    assert raster.kind == "probability"
    assert (raster.road_bands, raster.speed_band) == ((8,), 9)
    assert raster.speed_classes == ()  # the band of speeds counts
    assert raster.gsd_m == pytest.approx((1, 1), rel=1e-3)
    probability = raster.probability(0, 0, 20, 20)
    assert probability[0, 0] == 0  # nodata has the probability 0
    assert (probability.ravel()[1:] == 200).all()
    with rasterio.open(path, "r+") as dataset:
        dataset.set_band_description(9, "")
    classes = open_raster(path).speed_classes
    assert classes == tuple((i, 10.0 * i) for i in range(1, 8))


def test_nodata_is_that_of_the_band_of_roads(tmp_path):
    values = np.array([[[9, 9, 9]], [[0, 100, 200]]], np.uint8)
    path = write_raster(tmp_path / "source.tif", values)
    vrt = tmp_path / "p.vrt"
    rasterio.shutil.copy(path, vrt, driver="VRT")
    text = vrt.read_text()
    for band, nodata in ((1, 100), (2, 200)):
        at = text.index(">", text.index(f'<VRTRasterBand dataType="Byte" band="{band}"')) + 1
        text = f"{text[:at]}<NoDataValue>{nodata}</NoDataValue>{text[at:]}"
    vrt.write_text(text)
    raster = open_raster(vrt, RasterOptions(kind="probability", band=2))
    assert raster.probability(0, 0, 1, 3).tolist() == [[0, 100, 0]]


def test_the_kind_of_a_single_band_is_detected_from_its_values(tmp_path):
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
    sharp = (shares > 0.5).astype(np.float32)
    assert kind_of(write_raster(tmp_path / "f.tif", sharp), kind="mask") == "mask"


def test_probabilities_of_any_type_become_bytes(tmp_path):
    values = np.array([[0, 0.5, 1, np.nan]], np.float32)
    r = open_raster(write_raster(tmp_path / "f.tif", values), RasterOptions(kind="probability"))
    assert r.probability(0, 0, 1, 4).tolist() == [[0, 128, 255, 0]]
    wide = np.array([[0, 32768, 65535, 77]], np.uint16)
    path = write_raster(tmp_path / "w.tif", wide, nodata=77)
    r = open_raster(path, RasterOptions(kind="probability"))
    assert r.probability(0, 0, 1, 4).tolist() == [[0, 128, 255, 0]]


def test_values_that_are_not_probabilities_are_refused(tmp_path):
    path = write_raster(tmp_path / "f.tif", np.array([[0, 7.5]], np.float32))
    raster = open_raster(path, RasterOptions(kind="probability"))
    with pytest.raises(ImageError, match=r"f.tif: 7.5 is not a probability.*`kind`"):
        raster.probability(0, 0, 1, 2)


def test_eight_unnamed_bands_are_read_as_cresi(tmp_path):
    raster = open_raster(write_raster(tmp_path / "c.tif", np.zeros((8, 4, 4), np.uint8)))
    assert raster.road_bands == (8,)
    assert [band for band, _ in raster.speed_classes] == list(range(1, 8))


def test_a_photograph_is_refused_without_a_band(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path)
    with pytest.raises(ImageError, match=r"photo.png: has 3 bands.*`band`"):
        kind_of(path, pixel_size=1.0)
    assert open_raster(path, RasterOptions(pixel_size=1.0, band=2)).road_bands == (2,)
    with pytest.raises(UsageError, match="`band` is 4, but the file has 3"):
        open_raster(path, RasterOptions(band=4, pixel_size=1.0))


def test_either_a_georeference_or_a_pixel_size(tmp_path):
    path = tmp_path / "mask.png"
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(path)
    with pytest.raises(UsageError, match=r"not georeferenced. Set `pixel_size`"):
        kind_of(path)
    raster = open_raster(path, RasterOptions(pixel_size=0.5))
    assert (raster.grid, raster.gsd_m) == (None, (0.5, 0.5))
    placed = write_raster(tmp_path / "placed.tif", np.zeros((4, 4), np.uint8))
    with pytest.raises(UsageError, match="omit `pixel_size`"):
        kind_of(placed, pixel_size=1.0)


@pytest.mark.parametrize(
    ("record", "given", "error"),
    [
        (RasterOptions, {"kind": "x"}, "`kind` 'x' is unknown: use one of probability, speed"),
        (RasterOptions, {"pixel_size": 0}, "`pixel_size` 0.0: must be more than 0"),
        (ScoreOptions, {"snap": -1}, "`snap` -1.0: must be more than 0"),
    ],
)
def test_options_out_of_range_are_refused(record, given, error):
    with pytest.raises(UsageError, match=error):
        made(record, given)


@pytest.mark.parametrize(
    ("tag", "error"),
    [
        *((tag, "is malformed") for tag in ("not JSON", '{"band": 1}', '[{"band": 1}]', "7")),
        ('[{"band": "x", "mph": 2}]', "is malformed"),
        ('[{"band": 9, "mph": 25}]', "names band 9, but the file has 3"),
    ],
)
def test_a_wrong_tag_of_classes_is_named(tmp_path, tag, error):
    bands = np.zeros((3, 4, 4), np.uint8)
    path = write_raster(tmp_path / "m.tif", bands, tags={"CLASSES": tag})
    with pytest.raises(ImageError, match=f"m.tif: its tag CLASSES .*{error}"):
        kind_of(path)


def test_values_that_do_not_fit_their_kind_are_warned_of(tmp_path):
    mask = np.zeros((20, 20), np.uint8)
    mask[5] = 255
    ones = write_raster(tmp_path / "ones.tif", mask // 255)
    raster = open_raster(ones, RasterOptions(kind="speed"))
    assert "besides 0 are up to 1, which are no speeds in mph" in raster.warning
    mask[6] = 130
    raster = open_raster(write_raster(tmp_path / "m.tif", mask), RasterOptions(kind="speed"))
    assert "besides 0 are up to 255, which are no speeds in mph (255 is nodata)" in raster.warning
    stated = write_raster(tmp_path / "s.tif", mask // 2 + mask // 128 * 128, names=("speed",))
    raster = open_raster(stated, RasterOptions(kind="speed"))
    assert not raster.warning


def test_a_named_kind_still_finds_the_bands_of_a_prediction(tmp_path):
    bands = np.zeros((3, 20, 20), np.uint8)
    bands[2, 8:12] = 200
    path = write_raster(tmp_path / "p.tif", bands, names=("a", "speed", "road"))
    raster = open_raster(path, RasterOptions(kind="probability"))
    assert (raster.road_bands, raster.speed_band) == ((3,), 2)
    raster = open_raster(path, RasterOptions(kind="mask"))
    assert raster.road_bands == (3,)
    raster = open_raster(path, RasterOptions(kind="speed"))
    assert (raster.road_bands, raster.speed_band) == ((2,), 2)
    unnamed = write_raster(tmp_path / "u.tif", bands)
    for kind in ("probability", "mask", "speed"):
        with pytest.raises(ImageError, match="has 3 bands, and none is named"):
            open_raster(unnamed, RasterOptions(kind=kind))


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_a_mask_with_blurred_edges_is_refused(tmp_path, factor):
    """Averaged from finer pixels, as antialiased lines are drawn (5, 10, 17 values), or a ramp."""
    y, x = np.mgrid[: 200 * factor, : 200 * factor]
    fine = (y - 0.371 * x) % (50 * factor) < 15 * factor
    averaged = np.rint(255 * fine.reshape(200, factor, 200, factor).mean((1, 3)))
    assert len(np.unique(averaged)) == factor**2 + 1
    ramp = np.clip(255 - 8 * (np.abs(np.arange(200)[:, None] - 99.5) - 4), 0, 255)
    for values in (averaged, np.rint(ramp).repeat(200, axis=1)):
        path = write_raster(tmp_path / "m.tif", values.astype(np.uint8))
        told = r"m.tif: \d+% .*its edges are blurred.* Set `kind` to probability and a `thr"
        with pytest.raises(ImageError, match=told):
            kind_of(path, kind="mask")
    speeds = np.repeat(np.arange(0, 75, 5, dtype=np.uint8), 20)[None].repeat(99, axis=0)
    for sharp in (speeds, np.where(ramp > 127, 255, 0).astype(np.uint8).repeat(200, axis=1)):
        assert kind_of(write_raster(tmp_path / "s.tif", sharp), kind="mask") == "mask"
