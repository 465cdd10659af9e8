"""Test inputs, progress and warnings of vectorizing raster files."""

import numpy as np
import pytest
from affine import Affine
from helpers.rasters import write_raster
from helpers.roads import drawn

from geoprep.errors import ImageError, SourceError, UsageError
from geoprep.roads.options import RasterOptions, Tracing
from geoprep.roads.tracing.vectorization import rasters_in, vectorize


def three_rasters(folder):
    """Write three rasters, each 1 km from the next."""
    mask = drawn([[(-10, -50), (110, -50)]], (100, 100), width=5)
    return [
        write_raster(folder / f"{i}.tif", mask, transform=Affine(1, 0, 4e5 + 1000 * i, 0, -1, 6e6))
        for i in range(3)
    ]


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_progress_is_reported_for_any_number_of_workers(tmp_path, workers):
    steps = []
    vectorize(three_rasters(tmp_path), workers=workers, advance=lambda *step: steps.append(step))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_a_network_without_coordinates_is_refused(tmp_path):
    """Pixels beyond the domain of a CRS have no longitude and latitude."""
    mask = drawn([[(-10, -50), (110, -50)]], (100, 100), width=5)
    path = write_raster(tmp_path / "a.tif", mask, transform=Affine(1, 0, 1e9, 0, -1, 1e9))
    with pytest.raises(ImageError, match=r"a.tif is nowhere on Earth by its CRS and transform"):
        vectorize([path])


def test_rasters_without_georeference_are_vectorized_alone(tmp_path):
    for name in "ab":
        write_raster(tmp_path / f"{name}.tif", np.zeros((9, 9), np.uint8), crs=None)
    with pytest.raises(UsageError, match=r"a.tif: not georeferenced.*alone"):
        vectorize(rasters_in(tmp_path), reading=RasterOptions(pixel_size=1))
    assert vectorize([tmp_path / "a.tif"], reading=RasterOptions(pixel_size=1)).crs is None


def test_a_folder_without_rasters_is_named(tmp_path):
    with pytest.raises(SourceError, match="the folder has no raster"):
        rasters_in(tmp_path)
    with pytest.raises(SourceError, match="no such file"):
        rasters_in(tmp_path / "x.tif")


def test_previews_of_predictions_are_omitted(tmp_path):
    for name in ("b.tif", "a.tif", "a.png", "a.qml"):
        (tmp_path / name).touch()
    assert [path.name for path in rasters_in(tmp_path)] == ["a.tif", "b.tif"]
    for name in ("a.tif", "b.tif"):
        (tmp_path / name).unlink()
    assert [path.name for path in rasters_in(tmp_path)] == ["a.png"]


def test_separate_rasters_without_roads_give_empty_columns(tmp_path):
    blank = np.zeros((9, 9), np.uint8)
    places = [Affine(1, 0, 4e5 + 1000 * i, 0, -1, 6e6) for i in range(2)]
    paths = [write_raster(tmp_path / f"{at.c}.tif", blank, transform=at) for at in places]
    assert not vectorize(paths, reading=RasterOptions(kind="probability")).confidence.shape[0]


def test_a_network_without_edges_has_a_hint(tmp_path):
    faint = drawn([[(-10, -50), (110, -50)]], (100, 100), width=5, value=50)
    path = write_raster(tmp_path / "p.tif", faint, names=("road",))
    with pytest.warns(UserWarning, match=r"p.tif: no roads .* is 0.20; roads need 0.3 .* 0.5"):
        assert not len(vectorize([path]).ends)
    short = drawn([[(40, -50), (49, -50)]], (100, 100), width=5)
    path = write_raster(tmp_path / "m.tif", short)
    with pytest.warns(UserWarning, match=r"m.tif: no roads found. All are shorter than 30 m"):
        assert not len(vectorize([path], Tracing(min_length_m=30)).ends)
