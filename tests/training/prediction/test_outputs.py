"""Predictions replace no image, no file of others, and leave nothing stale beside them."""

import pyproj
import pytest
import rasterio
from helpers.predict_cases import make_checkpoint, pixels, write_image
from rasterio.crs import CRS
from rasterio.shutil import copy

from geoprep.errors import SourceError, UsageError
from training.prediction.job import predict_images
from training.prediction.predict_options import PredictOptions
from training.prediction.screen import Screen


@pytest.fixture
def predict(tmp_path, same_process):
    checkpoint, _ = make_checkpoint(tmp_path / "best.pt")

    def run(*images, out=tmp_path / "out", **options):
        given = {"device": "cpu", "precision": "fp32", "quiet": True, "model": POINTWISE}
        options = given | options
        images = tuple(map(str, images))
        with Screen(quiet=True) as screen:
            return predict_images(
                PredictOptions(checkpoint=checkpoint, images=images, out=out, **options), screen
            )

    return run


POINTWISE = "helpers.predict_cases:pointwise"


@pytest.fixture
def image(tmp_path):
    return write_image(tmp_path / "scene.tif", pixels(40, 40))


@pytest.mark.parametrize("name", ["scene.png", "scene.qml", "scene.tif", "scene.tif.aux.xml"])
def test_a_file_that_exists_is_refused_before_any_work(tmp_path, predict, image, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name} exists"):
        predict(image, overlay=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
    assert (tmp_path / "out" / name).read_text() == "mine"
    (done,) = predict(image, overlay=True, overwrite=True)
    assert done.state == "predicted"
    there = {path.name: path for path in (tmp_path / "out").iterdir()}
    assert set(there) == {"scene.tif", "scene.qml", "scene.png"}
    assert there["scene.tif"].read_bytes()[:2] == b"II"


def test_a_crs_that_geotiff_cannot_hold_is_beside_the_prediction(tmp_path, predict, image):
    crs = CRS.from_wkt(pyproj.CRS("EPSG:32637").to_3d().to_wkt())
    with rasterio.open(image, "r+") as file:
        file.crs = crs
    (done,) = predict(image)
    with rasterio.open(done.target) as file:
        assert file.crs == crs
    (again,) = predict(image)
    assert again.state == "complete"


def test_two_images_of_one_name_are_refused(tmp_path, predict, image):
    (tmp_path / "north").mkdir()  # a name with its folder would depend on the other images
    for other in ("scene.jp2", "north/scene.tif"):
        write_image(tmp_path / other, pixels(40, 40), driver="GTiff")
        with pytest.raises(SourceError, match=r"would both be scene\.tif\. Predict the images of"):
            predict(image, tmp_path / other)
    assert not (tmp_path / "out").exists()


def test_a_source_of_an_image_is_an_input(tmp_path, predict, image):
    (first,) = predict(image)
    before = first.target.read_bytes()
    with rasterio.open(first.target) as dataset:
        copy(dataset, tmp_path / "out" / "all.vrt", driver="VRT")
    (tmp_path / "out" / "all.vrt").rename(tmp_path / "out" / "scene.vrt")
    with pytest.raises(UsageError, match="would replace an input"):
        predict(tmp_path / "out" / "scene.vrt", overwrite=True, bands="1,1,1")
    assert first.target.read_bytes() == before


def test_what_describes_the_prediction_before_goes_with_it(tmp_path, predict, image, capsys):
    predict(image, overlay=True)
    (tmp_path / "out" / "scene.tif.aux.xml").write_text("<PAMDataset/>")
    predict(image, threshold=0.3, overwrite=True)
    assert "scene.png was there before" in capsys.readouterr().out
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there == {"scene.png", "scene.qml", "scene.tif"}


def test_a_style_that_was_edited_stays_beside_a_complete_prediction(tmp_path, predict, image):
    predict(image)
    style = tmp_path / "out" / "scene.qml"
    style.write_text("mine")
    (again,) = predict(image)
    assert again.state == "complete"
    assert style.read_text() == "mine"
