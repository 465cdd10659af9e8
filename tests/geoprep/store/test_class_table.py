"""Names and colours of classes, and stores with the same classes in another order."""

from dataclasses import replace

import numpy as np
import pytest

from geoprep.errors import UsageError
from geoprep.store.classes import ClassTable
from geoprep.store.schema import StoreMeta

TABLE = ClassTable(("road", "water", "tree"), ("#FF0000", "#0000FF", "#00FF00"))


def test_bytes_of_another_order_are_looked_up():
    lookup = TABLE.lookup(["tree", "road", "water"])
    assert lookup[[0, 1, 2, 3, 254, 255]].tolist() == [2, 0, 1, 255, 255, 255]
    label = np.array([[0, 1], [2, 255]], np.uint8)
    assert lookup[label].tolist() == [[2, 0], [1, 255]]


@pytest.mark.parametrize("other", [["road", "water"], ["road", "water", "tree", "car"]])
def test_other_classes_are_refused_by_name(other):
    with pytest.raises(UsageError, match="tree" if len(other) == 2 else "car"):
        TABLE.lookup(other)


def test_colours_and_numbers():
    assert TABLE.rgb.tolist() == [[255, 0, 0], [0, 0, 255], [0, 255, 0]]
    assert TABLE.colour_table()[1].tolist() == [0, 0, 255]
    assert TABLE.index("tree") == 2
    with pytest.raises(UsageError, match="no class 'lake': the classes are road, water, tree"):
        TABLE.index("lake")


def test_attributes_of_speeds_are_those_of_schema_1(store):
    attrs = store.meta.to_attrs()
    assert not {"kind", "class_names", "class_colors"} & attrs.keys()
    assert StoreMeta.from_attrs(attrs) == store.meta


def test_attributes_of_classes_are_read_back(store):
    classes = {
        "schema": 2,
        "kind": "classes",
        "speed_unit": "none",
        "class_names": ("a", "b"),
        "class_colors": ("#FF0000", "#00FF00"),
    }
    whole = replace(store.meta, **classes)
    assert StoreMeta.from_attrs(whole.to_attrs()) == whole
    assert whole.label_array == "label"
