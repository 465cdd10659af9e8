"""Only the windows that an area needs are predicted, as they are of the whole image."""

from dataclasses import replace

import geopandas as gpd
import numpy as np
import pytest
import rasterio
import shapely
from helpers.predict_cases import (
    CLASSES,
    PLACE,
    SMOOTH,
    UTM,
    Bands,
    make_checkpoint,
    pixels,
    predicted,
    write_image,
)
from rasterio.features import rasterize
from rasterio.windows import from_bounds

from geoprep.errors import UsageError
from training import predict as command
from training.prediction.area import read_area


def areas(folder, name="area.gpkg"):
    """Write a triangle and a small diamond far from it, and a third one that is not chosen."""
    shapes = [
        shapely.Polygon([(5, 20), (25, 24), (9, 41)]),
        shapely.Point(20, 180).buffer(7, quad_segs=1),
        shapely.box(0, 100, 30, 140),
    ]
    placed = [
        shapely.transform(s, lambda xy: np.array(PLACE @ (0, 0)) + xy * (1, -1)) for s in shapes
    ]
    frame = gpd.GeoDataFrame({"kind": ["a", "a", "b"]}, geometry=placed, crs=UTM)
    frame.to_crs(4326).to_file(folder / name)
    return {"area": str(folder / name), "where": "kind = 'a'"}, placed[:2]


@pytest.mark.parametrize("grid", ["image", "model"])
@pytest.mark.parametrize("factors", [(1, 1), (2, 2), (0.7, 0.7), (1.37, 3)])
def test_pixels_inside_are_those_of_the_whole_prediction(tmp_path, factors, grid):
    image = write_image(tmp_path / "image.tif", SMOOTH)
    options, shapes = areas(tmp_path)
    whole_runner, runner = Bands(), Bands()
    whole, of_whole = predicted(tmp_path / "w.tif", image, factors, whole_runner, grid=grid)
    found, file = predicted(tmp_path / "p.tif", image, factors, runner, grid=grid, **options)
    assert runner.calls < 0.6 * whole_runner.calls
    inside = rasterize(shapes, of_whole.shape, transform=of_whole.transform).astype(bool)
    part = from_bounds(*file.bounds, of_whole.transform).round_offsets().round_lengths()
    rows, columns = part.toslices()
    assert found.shape[1:] == (part.height, part.width)
    bounds = np.array(shapely.total_bounds(np.array(shapes)))
    assert np.abs(np.array(file.bounds) - bounds).max() < 1.01 * max(of_whole.res)
    wanted = np.where(inside, whole, 255)[:, rows, columns]
    np.testing.assert_array_equal(found, wanted)
    assert (wanted != 255).any()
    outer = inside.copy()
    outer[rows, columns] = False
    assert not outer.any()


@pytest.mark.parametrize("factors", [(1, 1), (0.7, 0.7)])
def test_an_interrupted_area_is_finished_with_the_same_bytes(tmp_path, factors):
    image = write_image(tmp_path / "image.tif", np.tile(SMOOTH, (2, 1, 1)))
    top = shapely.box(PLACE.c + 3, PLACE.f - 420, PLACE.c + 25, PLACE.f - 30)
    gpd.GeoDataFrame(geometry=[top], crs=UTM).to_file(tmp_path / "a.gpkg")
    options = {"area": str(tmp_path / "a.gpkg")}
    runner, second = Bands(), Bands()
    whole, _ = predicted(tmp_path / "whole.tif", image, factors, runner, **options)
    with pytest.raises(KeyboardInterrupt):
        predicted(tmp_path / "p.tif", image, factors, Bands(end=int(0.8 * runner.calls)), **options)
    found, _ = predicted(tmp_path / "p.tif", image, factors, second, **options)
    assert second.calls < 0.7 * runner.calls
    np.testing.assert_array_equal(found, whole)


def test_limits_and_validity_are_those_of_the_whole_image(tmp_path):
    """The percentiles of the area, and the black that touches its border, are others."""
    values = SMOOTH.astype(np.uint16) * 8
    values[:, 40:60] = values[:, 40:60] // 4
    values[70:80, 60:70] = 0
    image = write_image(tmp_path / "image.tif", values)
    facts = replace(CLASSES, rescale="scene")
    box = [PLACE.c + 12, PLACE.f - 40, PLACE.c + 24, PLACE.f - 23]
    gpd.GeoDataFrame(geometry=[shapely.box(*box)], crs=UTM).to_file(tmp_path / "a.gpkg")
    whole, of_whole = predicted(tmp_path / "w.tif", image, (1, 1), facts=facts)
    found, file = predicted(
        tmp_path / "p.tif", image, (1, 1), facts=facts, area=str(tmp_path / "a.gpkg")
    )
    part = from_bounds(*file.bounds, of_whole.transform).round_offsets().round_lengths()
    rows, columns = part.toslices()
    inner = np.s_[:, 1:-1, 1:-1]
    np.testing.assert_array_equal(found[inner], whole[:, rows, columns][inner])


def test_the_command_predicts_the_images_of_an_area(tmp_path, capsys, same_process):
    path, _ = make_checkpoint(tmp_path / "best.pt")
    near = write_image(tmp_path / "near.tif", pixels(60, 80))
    far = write_image(
        tmp_path / "far.tif", pixels(60, 80), transform=PLACE * PLACE.translation(9e4, 0)
    )
    box = gpd.GeoSeries([shapely.box(PLACE.c + 5, PLACE.f - 9, PLACE.c + 9, PLACE.f - 2)], crs=UTM)
    degrees = ",".join(f"{value:.7f}" for value in box.to_crs(4326).total_bounds)
    model = ("--model", "helpers.predict_cases:pointwise", "--precision", "fp32")
    args = [
        str(path),
        str(near),
        str(far),
        "--out",
        str(tmp_path / "out"),
        "--area",
        degrees,
        *model,
    ]
    assert command.main([*args, "--overlay"]) == 0
    said = capsys.readouterr().out
    assert "far.tif: does not intersect the area" in said
    assert "1 predicted, 0 already complete, 1 outside the area, 0 failed" in said
    with rasterio.open(tmp_path / "out" / "near.tif") as file:
        assert file.height < 30
        assert file.width < 18
    assert command.main(args) == 0
    assert "near.tif: already complete" in capsys.readouterr().out
    for area in ([], ["--area", "37,55,38,56"]):
        assert command.main([*args[:2], *args[3:5], *area, "--where", "a > 1", *model]) == 2
        assert "--where selects features of a file" in capsys.readouterr().err
    assert command.main([*args[:2], *args[3:5], "--area", "0,0,1,1", *model]) == 2
    assert "intersects none of the images" in capsys.readouterr().err
    assert command.main([*args[:2], *args[3:5], "--area", "37,55,38,56", *model]) == 2
    assert "other options (area)" in capsys.readouterr().err


def test_areas_that_cannot_be_read_are_refused(tmp_path):
    areas(tmp_path)
    with pytest.raises(UsageError, match="no such file, and not W,S,E,N"):
        read_area("1,2,3", None)
    with pytest.raises(UsageError, match="no polygons that `where` selects"):
        read_area(str(tmp_path / "area.gpkg"), "kind = 'c'")
    with pytest.raises(UsageError, match="no polygons that `where` selects"):
        read_area(str(tmp_path / "area.gpkg"), "kind = 'A'")
    gpd.read_file(tmp_path / "area.gpkg").to_file(tmp_path / "area.geojson")
    with pytest.raises(UsageError, match="no polygons that `where` selects"):  # as in all formats
        read_area(str(tmp_path / "area.geojson"), "kind = 'A'")
