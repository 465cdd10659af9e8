"""Classes of vector labels by the values of a field: text stays text, numbers are numbers."""

import json

import geopandas
import numpy as np
import pytest
import shapely

from geoprep.errors import LabelError
from geoprep.labels.classes import classes_text, parse_classes
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.label_shapes import read_shapes
from geoprep.labels.raster_rules import make_class_rule


def classes_of(path, classes, other="refuse"):
    """Return the number of the class of every feature of a file; 255 without a label."""
    rule = make_class_rule(classes_text(parse_classes(classes)), other=other, field="code")
    roads = read_shapes(path, rule=SpeedRule(classes=rule))
    return roads.value.tolist()


def written(folder, values, suffix="gpkg"):
    boxes = [shapely.box(i, 0, i + 1, 1) for i in range(len(values))]
    path = folder / f"land.{suffix}"
    geopandas.GeoDataFrame({"code": values}, geometry=boxes, crs="EPSG:32637").to_file(path)
    return path


TEXTS = ["1_1", "11", "1E2", "100", "010", "10", "٣", "3", "9007199254740993", "9007199254740992"]


@pytest.mark.parametrize("suffix", ["gpkg", "geojson", "parquet"])
def test_text_codes_that_look_like_one_number_are_different_classes(tmp_path, suffix):
    path = written(tmp_path, TEXTS)
    if suffix != "gpkg":
        frame, path = geopandas.read_file(path), path.with_suffix(f".{suffix}")
        frame.to_parquet(path) if suffix == "parquet" else frame.to_file(path)
    classes = [{"name": f"c{i}", "value": text} for i, text in enumerate(TEXTS)]
    assert classes_of(path, classes) == list(range(len(TEXTS)))
    assert classes_of(path, classes[::2], "nodata") == [0, 255, 1, 255, 2, 255, 3, 255, 4, 255]


def test_numbers_are_compared_as_numbers_of_their_field(tmp_path):
    large = written(tmp_path, np.array([2**53 + 1, 2**53, 10, 3], np.int64))
    exact = f"a={2**53},b={2**53 + 1},c=010,d=3.0"
    assert classes_of(large, exact) == [1, 0, 2, 3]
    parts = written(tmp_path, np.array([2.5, 3.0, 100.0]), "shp")
    classes = [{"name": "a", "value": [2.5, 3]}, {"name": "b", "value": "1E2"}]
    assert classes_of(parts, classes) == [0, 0, 1]
    with pytest.raises(LabelError, match="classes a and b both have the number 010"):
        classes_of(large, "a=10,b=010,c=3", "nodata")
    with pytest.raises(LabelError, match=r"values that no class has: 9007199254740993 \(1 "):
        classes_of(large, f"a={2**53},c=10,d=3")


def test_a_geojson_may_mix_text_and_numbers(tmp_path):
    path = written(tmp_path, ["1_1", "x"], "geojson")
    document = json.loads(path.read_text())
    document["features"][1]["properties"]["code"] = 11
    path.write_text(json.dumps(document))
    assert classes_of(path, [{"name": "a", "value": "1_1"}, {"name": "b", "value": 11}]) == [0, 1]


def test_a_field_with_the_name_of_a_single_class_is_noted(tmp_path):
    rule = SpeedRule(classes=make_class_rule(classes_text(parse_classes("code"))))
    roads = read_shapes(written(tmp_path, ["lake", "wood"]), rule=rule)
    assert roads.value.tolist() == [1, 1]
    (note,) = roads.notes
    assert "whatever their fields tell: code (lake, wood). Select some by `where`, such as" in note
    assert "for classes by values give a field as `class_field`" in note
    assert read_shapes(written(tmp_path, ["yes", "yes"]), rule=rule).notes == {}
