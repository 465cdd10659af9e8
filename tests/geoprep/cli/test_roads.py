"""geoprep vectorize and preview as a user runs them."""

import csv

import numpy as np
import pytest
import rasterio
import shapely
from affine import Affine
from helpers.rasters import write_raster
from helpers.roads import drawn

from geoprep.roads.formats.files import read_network
from geoprep.roads.options import Tracing

CITY = [[(-10, -100), (410, -130)], [(120, 10), (100, -210)], [(300, 10), (310, -210)]]


@pytest.fixture
def predictions(tmp_path):
    """Return a folder of two neighbouring rasters of speeds."""
    folder = tmp_path / "predictions"
    folder.mkdir()
    mask = drawn(CITY, (200, 400), width=5, value=25)
    for number, left in enumerate((0, 200)):
        write_raster(
            folder / f"AOI_7_Moscow_PS-RGB_chip{number}.tif",
            mask[:, left : left + 200],
            transform=Affine(1, 0, 400_000 + left, 0, -1, 6_000_000),
        )
    return folder


def test_predictions_become_one_network(predictions, tmp_path, geoprep):
    out = tmp_path / "city.gpkg"
    text = geoprep("vectorize", predictions, "--out", out, "--kind", "speed", "--quiet").out
    made = read_network(out)
    assert text == f"wrote {out}: {len(made.ends)} edges, {len(made.nodes)} nodes, " + (
        f"{made.length_m.sum() / 1000:,.3f} km\n"
    )
    assert made.speed_mph == pytest.approx(25)


def test_a_table_has_the_pixels_of_the_predicted_image(predictions, tmp_path, geoprep):
    ends = []
    for name in ("own", "finer"):
        out = tmp_path / f"{name}.csv"
        geoprep("vectorize", predictions, "--out", out, "--quiet")
        lines = [row[1] for row in csv.reader(out.open()) if row[1].startswith("LINESTRING (")]
        ends.append(np.array([shapely.from_wkt(line).bounds for line in lines]))
        for path in predictions.iterdir():  # made of images of half the pixel size
            with rasterio.open(path, "r+") as dataset:
                dataset.update_tags(SOURCE_SIZE=f"{2 * dataset.height} {2 * dataset.width}")
    assert len(ends[0])
    assert ends[1] == pytest.approx(2 * ends[0], abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("vectorize", "nowhere", "--out", "x.gpkg"),
            "nowhere: no such file or folder; check",
        ),
        (("vectorize", ".", "--out", "x.shp"), "x.shp: use a name that ends in .gpkg"),
        (("vectorize", ".", "--out", "x.shp"), ".geojson, .parquet"),
        (("preview", "nowhere.gpkg"), "nowhere.gpkg: no such file"),
        (("preview", "nowhere.gpkg", "--scene", "chip1"), "--scene and --level are for stores"),
        (("preview", "a.zarr", "--over", "x.tif"), "--over x.tif is for road networks"),
    ],
)
def test_errors_are_one_line(geoprep, arguments, message):
    error = geoprep(*arguments, status=2).err
    assert error.startswith("Error: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_folder_is_reported_before_the_work(predictions, geoprep, monkeypatch):
    def traced(*_, **__):
        raise AssertionError("hours of work")

    monkeypatch.setattr("geoprep.roads.tracing.vectorization.trace", traced)
    refused = geoprep("vectorize", predictions, "--out", "nowhere/x.gpkg", "--quiet", status=2)
    assert "does not exist: create it first" in refused.err


@pytest.mark.parametrize(
    ("values", "nodata"),
    [(np.full((50, 50), np.nan, np.float32), None), (np.full((50, 50), 255, np.uint8), 255)],
    ids=["NaN", "nodata"],
)
def test_a_raster_without_data_is_warned_of(tmp_path, geoprep, values, nodata):
    path = write_raster(tmp_path / "blank.tif", values, nodata=nodata)
    for suffix in ("gpkg", "csv"):
        printed = geoprep("vectorize", path, "--out", f"x.{suffix}", "--overwrite", "--quiet")
        assert "0 edges" in printed.out
        assert printed.err == f"warning: {path}: has only nodata pixels, so it has no roads\n"
    write_raster(path, np.zeros((50, 50), np.uint8))
    printed = geoprep("vectorize", path, "--out", "x.gpkg", "--overwrite", "--quiet")
    assert not printed.err  # background alone is no reason to warn


@pytest.mark.parametrize("suffix", ["gpkg", "csv"])
def test_a_mask_called_speeds_is_refused(tmp_path, geoprep, suffix):
    path = write_raster(tmp_path / "m.tif", drawn(CITY, (200, 400), value=255))
    out = tmp_path / f"x.{suffix}"
    command = ("vectorize", path, "--out", out, "--quiet")
    error = geoprep(*command, "--kind", "speed", status=1).err
    assert error.startswith(f"Error: {path}: its values besides 0 are up to 255, which are no")
    assert "Set --kind to mask" in error
    assert not out.exists()
    geoprep(*command, "--kind", "mask")


def test_a_mask_whose_nodata_tag_hides_its_roads_is_refused(tmp_path, geoprep):
    path = write_raster(tmp_path / "m.tif", drawn(CITY, (200, 400), value=255), nodata=255)
    command = ("vectorize", path, "--out", "x.gpkg", "--quiet")
    for kind in ((), ("--kind", "mask")):
        refused = geoprep(*command, *kind, status=1)
        assert f"remove the tag: rio edit-info --unset-nodata {path}" in refused.err


def test_a_hidden_mask_among_others_is_warned_of(predictions, tmp_path, geoprep):
    mask = drawn(CITY, (200, 400), value=255)
    path = write_raster(predictions / "z.tif", mask, transform=Affine(1, 0, 5e5, 0, -1, 6e6))
    words = ("vectorize", predictions, "--out", "x.gpkg", "--kind", "speed", "--quiet")
    error = geoprep(*words).err
    assert error.startswith(f"warning: {path}: its values besides 0 are up to 255")
    assert error.count("\n") == 1


def test_noise_is_warned_of(tmp_path, geoprep):
    noise = (np.random.default_rng(0).random((300, 300)) < 0.5).astype(np.uint8) * 255
    path = write_raster(tmp_path / "noise.tif", noise)
    for suffix in ("gpkg", "csv"):
        error = geoprep("vectorize", path, "--out", f"x.{suffix}", "--quiet").err
        assert error.startswith(f"warning: {path}: ")
        assert "km of road per square kilometre" in error
        assert "try a higher --threshold" in error


def prediction(path, threshold):
    """Write roads of probabilities 0.35, 0.59 and 0.86."""
    values = np.zeros((200, 200), np.uint8)
    for row, value in ((40, 90), (100, 150), (160, 220)):
        values[row : row + 6] = value
    return write_raster(path, values, names=["road"], tags={"ROAD_THRESHOLD": threshold})


def test_a_prediction_states_the_threshold(tmp_path, geoprep):
    raster, out = prediction(tmp_path / "p.tif", "0.5"), tmp_path / "roads.gpkg"

    def rows(*options):
        geoprep("vectorize", raster, "--out", out, "--overwrite", *options)
        return len(read_network(out).ends)

    assert rows() == 2  # the weakest reaches 0.3 but not 0.5
    prediction(raster, "0.7")
    assert rows() == 1
    assert rows("--threshold", "0.3") == 2
    assert rows("--threshold", "0.3", "--high-threshold", "0.3") == 3
    assert rows("--high-threshold", "0.55") == 2
    prediction(raster, "much")
    error = geoprep("vectorize", raster, "--out", out, "--overwrite", status=1).err
    assert "tag ROAD_THRESHOLD is malformed: 'much'" in error


def test_high_threshold_follows_the_threshold():
    assert Tracing().thresholds(None) == Tracing(threshold=0.3).thresholds(0.5) == (0.3, 0.5)
    assert Tracing().thresholds(1.0) == (1, 1)
