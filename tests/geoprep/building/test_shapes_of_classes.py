"""Points, closed lines and areas of many kinds: each is drawn as what it is, and said."""

import geopandas
import numpy as np
import pytest
import shapely
from affine import Affine
from helpers.rasters import write_raster

import geoprep as gp
from geoprep.errors import LabelError, UsageError
from geoprep.store.scenes import read_label

X, Y, SIDE = 400_000.0, 6_200_000.0, 200
SMALL = {"tile": SIDE, "levels": 1, "val": 0.0}


def at(left, top, width, height):
    return shapely.box(X + left, Y - top - height, X + left + width, Y - top)


def outline(shape):
    return shapely.LineString(shape.exterior.coords)


HOUSES = at(20, 20, 60, 40), at(120, 120, 30, 30)


@pytest.fixture
def built(tmp_path):
    """Return a function that builds a store of one scene of 1 m from shapes and options."""
    values = np.random.default_rng(0).integers(30, 220, (3, SIDE, SIDE), np.uint8)
    write_raster(tmp_path / "image.tif", values, transform=Affine(1, 0, X, 0, -1, Y))

    def build(shapes, fields=None, suffix="gpkg", **options):
        labels = tmp_path / f"labels.{suffix}"
        labels.unlink(missing_ok=True)
        frame = geopandas.GeoDataFrame(fields or {}, geometry=[*shapes], crs="EPSG:32637")
        frame.to_file(labels) if suffix != "parquet" else frame.to_parquet(labels)
        given = {"classes": "building"} | SMALL | options  # notes are printed with the bars
        images = {"images": tmp_path / "image.tif", "labels": labels}
        return gp.build_zarr(**images, out=tmp_path / "a.zarr", overwrite=True, **given)

    return build


def drawn(store):
    """Return how many pixels of the only scene are of the only class."""
    return int((labels_of(store) == 1).sum())


def labels_of(store):
    return read_label(store.reader, 0)


def test_points_are_refused_without_a_radius_and_drawn_with_it(built):
    trees = [shapely.Point(X + 50.2, Y - 50.7), shapely.MultiPoint([(X + 150.5, Y - 150.5)])]
    for suffix in ("gpkg", "geojson", "parquet"):
        with pytest.raises(LabelError, match="Points need their radius in metres as `buffer`"):
            built(trees, suffix=suffix, classes="tree", dry_run=True)
        store = built(trees, suffix=suffix, classes="tree", buffer=8.0)
        assert drawn(store) == pytest.approx(2 * np.pi * 64, rel=0.05)
        assert store.summary.notes["point drawn 16 m wide"] == 2


def test_nodes_among_roads_stay_out_whatever_the_buffer(built, capsys):
    road = shapely.LineString([(X, Y - 100), (X + 200, Y - 100)])
    crossing = shapely.Point(X + 20, Y - 20)
    fields = {"highway": ["primary", "crossing"]}
    store = built([road, crossing], fields, classes=None, suffix="geojson", buffer=3.0)
    assert (labels_of(store) != 0).sum() == 6 * SIDE
    assert "features left out (geometry Point: 1)" in capsys.readouterr().err


def test_one_file_of_points_per_scene_is_refused_at_the_dry_run(tmp_path):
    for name in ("a", "b"):
        place = Affine(1, 0, X, 0, -1, Y)
        write_raster(tmp_path / f"{name}.tif", np.ones((3, 64, 64), np.uint8), transform=place)
        poles = geopandas.GeoDataFrame(geometry=[shapely.Point(X + 9, Y - 9)], crs="EPSG:32637")
        poles.to_file(tmp_path / f"{name}.geojson")
    given = {"images": f"{tmp_path}/*.tif", "labels": f"{tmp_path}/*.geojson", "classes": "pole"}
    with pytest.raises(LabelError, match=r"a\.geojson: none of its 1 feature .* as `buffer`"):
        gp.build_zarr(**given, out=tmp_path / "a.zarr", dry_run=True)
    said = gp.build_zarr(**given, out=tmp_path / "a.zarr", buffer=2.0, dry_run=True)
    assert said.failures == ()


def test_closed_lines_of_a_class_are_areas_and_open_ones_have_a_width(built):
    for shapes in (map(outline, HOUSES), (HOUSES[0], outline(HOUSES[1]))):
        store = built(shapes)
        assert drawn(store) == 60 * 40 + 30 * 30
    assert store.summary.notes["closed line read as an area"] == 1
    wall = shapely.LineString([(X + 20, Y - 100), (X + 120, Y - 100)])
    store = built([wall])
    assert drawn(store) == pytest.approx(4 * 100, abs=8)  # with its caps
    assert store.summary.notes["line drawn 4 m wide"] == 1


def test_a_roundabout_of_a_class_of_roads_stays_a_line(built):
    ring = outline(at(50, 50, 60, 60))
    store = built([ring], {"highway": ["residential"]}, classes="road")
    assert 4 * 4 * 56 <= drawn(store) <= 4 * 4 * 64


def test_the_edge_of_an_area_in_one_feature_is_said_to_be_a_line(built):
    edge = shapely.LineString([(X + 50, Y - 50), (X + 90, Y - 50)])
    point = shapely.Point(X + 60, Y - 60)
    store = built([shapely.GeometryCollection([at(50, 50, 40, 30), edge, point])])
    assert store.summary.notes == {"line drawn 4 m wide": 1}


@pytest.mark.parametrize("suffix", ["gpkg", "parquet"])
def test_areas_of_many_kinds_as_one_class_are_noted_with_the_condition(built, suffix, capsys):
    fields = {
        "building": ["yes", None, None],
        "landuse": [None, "forest", None],
        "leisure": [None, None, "park"],
    }
    shapes = [*HOUSES, at(0, 150, 30, 30)]
    store = built(shapes, fields, suffix=suffix)
    note = capsys.readouterr().err
    assert "building (yes); landuse (forest); leisure (park)" in note
    assert "such as '\"building\" IS NOT NULL'" in note
    assert drawn(store) == 2400 + 900 + 900
    store = built(shapes, fields, suffix=suffix, where='"building" IS NOT NULL')
    assert drawn(store) == 2400
    assert "whatever" not in capsys.readouterr().err
    built(shapes, {"fclass": ["park", "house", "house"]}, suffix=suffix)
    note = capsys.readouterr().err
    assert "fclass (house, park)" in note
    assert "\"fclass\" = 'house'" in note


@pytest.mark.parametrize("kind", ["areas", "masks", "roads"])
def test_no_label_file_can_mean_background(tmp_path, kind, capsys):
    for i, name in enumerate("abc"):
        place = Affine(1, 0, X + 1000 * i, 0, -1, Y)
        write_raster(tmp_path / f"{name}.tif", np.full((3, 64, 40), 99, np.uint8), transform=place)
    given = {"images": f"{tmp_path}/*.tif", "labels": f"{tmp_path}/a.*", "tile": 32, "levels": 2}
    if kind == "masks":
        given |= {"labels": tmp_path / "masks", "classes": "building=1"}
        place = Affine(1, 0, X, 0, -1, Y)
        write_raster(tmp_path / "masks" / "a.tif", np.ones((1, 64, 40), np.uint8), transform=place)
    else:
        given["labels"] = f"{tmp_path}/*.geojson"
        given |= {"classes": "building"} if kind == "areas" else {}
        shape = at(8, 8, 16, 16) if kind == "areas" else outline(at(8, 8, 16, 16))
        frame = geopandas.GeoDataFrame({"highway": ["primary"]}, geometry=[shape], crs="EPSG:32637")
        frame.to_file(tmp_path / "a.geojson")
    given |= {"out": tmp_path / "a.zarr", "val": 0.0}
    assert (gp.build_zarr(**given).scenes.status == "unlabelled").sum() == 2
    store = gp.build_zarr(**given, missing_label="background", overwrite=True)
    assert "2 images without a label file: background" in capsys.readouterr().err
    assert (store.scenes.status == "ok").all()
    for scene, level in ((0, None), (1, None), (2, 16)):
        label = read_label(store.reader, scene, level)
        assert (label != 255).all()
        assert label.any() == (scene == 0)
    assert gp.check_store(store).ok
    if kind != "roads":
        classes = "building=1,water=2" if kind == "masks" else "building,water"
        with pytest.raises(UsageError, match="begin `classes` with background"):
            gp.build_zarr(**given | {"classes": classes}, missing_label="background", dry_run=True)
    given["labels"] = f"{tmp_path}/a.geojson"
    if kind == "areas":
        with pytest.raises(UsageError, match="`missing_label` needs `labels` of a file per image"):
            gp.build_zarr(**given, missing_label="background", dry_run=True)
