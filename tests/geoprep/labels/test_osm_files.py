"""Test OpenStreetMap data: deleted objects, ways without nodes, closed roads, ids of editors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import shapely
from helpers.roads import degree_counts

from geoprep.errors import LabelError
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.label_shapes import LabelFile
from geoprep.labels.osm_files import AREA, LOST, SHORTENED
from geoprep.labels.vector_labels import read_label_table
from geoprep.roads.formats.files import read_if_network, read_network

PRIMARY = {"highway": "primary"}
SCENE = (37.0, 55.0, 37.1, 55.1)
# Written by osmium: nodes from -3 and way -9; way 9 without its nodes; a header alone.
WRITTEN = Path(__file__).parents[2] / "data" / "osm"


def node(number, more=""):
    return f'<node id="{number}" lat="{place(number)[1]}" lon="{place(number)[0]}" {more}/>'


def place(number):
    return 37.01 + 0.001 * number, 55.05 + 0.001 * (number % 2)


def way(number, refs, tags=PRIMARY, more="", geometry=False):
    inline = 'lat="{1}" lon="{0}"'.format
    points = "".join(f'<nd ref="{ref}" {inline(*place(ref)) if geometry else ""}/>' for ref in refs)
    pairs = "".join(f'<tag k="{key}" v="{value}"/>' for key, value in tags.items())
    return f'<way id="{number}" {more}>{points}{pairs}</way>'


NODES = "".join(node(number) for number in range(1, 6))


def read(tmp_path, *objects, **rule):
    path = tmp_path / "town.osm"
    path.write_text(f'<osm version="0.6">{"".join(objects)}</osm>')
    return read_label_table(path, SpeedRule(**rule))


def drawn(table):
    """Return the number of points of each road that is drawn."""
    return sorted(len(line.coords) for line in table.roads().lines)


@pytest.mark.parametrize("mark", ['action="delete"', 'visible="false"'])
def test_deleted_objects_are_left_out(tmp_path, mark):
    table = read(tmp_path, NODES, way(8, [1, 2, 3]), way(9, [4, 5], more=mark))
    assert drawn(table) == [3]
    assert not table.roads().notes.keys() & {LOST, SHORTENED}
    changed = 'action="modify" visible="true"'
    assert drawn(read(tmp_path, NODES, way(9, [4, 5], more=changed))) == [2]


def test_coordinates_in_ways_are_read_once(tmp_path):
    """As Overpass gives them: ``out geom``, here with some of the nodes too."""
    ways = way(8, [1, 2, 3], geometry=True), way(9, [3, 4], geometry=True)
    for nodes in ("", node(1) + node(4)):
        for objects in ((nodes, *ways), (*ways, nodes)):
            table = read(tmp_path, *objects)
            assert drawn(table) == [2, 3]
            first = next(line for line in table.lines if len(line.coords) == 3)
            expected = np.array([place(1), place(2), place(3)])
            np.testing.assert_allclose(shapely.get_coordinates(first), expected)


def test_ways_without_coordinates_are_counted_and_are_not_no_road(tmp_path):
    one = read(tmp_path, NODES, way(7, [1, 2]), way(8, [71, 72]), way(9, [3, 73, 4]))
    assert drawn(one) == [2, 2]
    counts = one.roads().notes
    assert counts[LOST] == counts[SHORTENED] == 1
    none = read(tmp_path, way(8, [71, 72]), way(9, []), node(1))
    with pytest.raises(LabelError, match=r"town\.osm: none of its 2 features has coord.*_;>;"):
        LabelFile.of(none).require_touch(SCENE, "EPSG:4326")
    assert not LabelFile.of(none).covers(SCENE, "EPSG:4326")
    empty = read(tmp_path, NODES, way(9, [1, 2], tags={}))
    LabelFile.of(empty).require_touch(SCENE, "EPSG:4326")


@pytest.mark.parametrize(
    ("tags", "layer"),
    [
        ({"landuse": "residential"}, "lines"),
        ({"amenity": "parking", "area": "no"}, "lines"),
        ({"public_transport": "platform"}, "lines"),
        ({}, "lines"),
        ({"area": "yes"}, "multipolygons"),
    ],
)
def test_a_closed_road_is_a_line_unless_it_is_tagged_as_an_area(tmp_path, tags, layer):
    ring = way(9, [1, 2, 3, 1], PRIMARY | tags)
    there = read(tmp_path, NODES, ring, layer=layer)
    assert [len(there.lines), there.value.tolist()] == [1, [45]]
    other = {"lines": "multipolygons", "multipolygons": "lines"}[layer]
    without = read(tmp_path, NODES, ring, layer=other)
    assert len(without.lines) == 0
    assert (AREA in without.file_notes) == ("area" in tags and layer != "lines")
    assert AREA not in there.file_notes


def test_ids_below_0_are_read_from_both_formats(tmp_path):
    nodes = node(1).replace('id="1"', 'id="-1"'), node(2).replace('id="2"', 'id="-2"')
    assert drawn(read(tmp_path, *nodes, way(-9, [1, 2]).replace('ref="', 'ref="-'))) == [2]
    assert drawn(read_label_table(WRITTEN / "negative.osm.pbf", SpeedRule())) == [3]


@pytest.mark.parametrize(("name", "lost"), [("without_nodes", {LOST: 1}), ("empty", {})])
def test_a_pbf_whose_ways_lack_nodes_is_not_no_road(name, lost):
    assert read_label_table(WRITTEN / f"{name}.osm.pbf", SpeedRule()).lineless() == lost


def test_a_damaged_document_is_named(tmp_path):
    path = tmp_path / "town.osm"
    path.write_text(f'<osm version="0.6">{NODES}{way(9, [1, 2])}')
    with pytest.raises(LabelError, match=r"town\.osm: not readable as a vector file"):
        read_label_table(path, SpeedRule())
    path.write_text(f'<osm version="0.6">{NODES}{node(1)}{way(9, [1, 2])}</osm>')
    with pytest.raises(LabelError, match=r"town\.osm: not readable as a vector file.*UNIQUE"):
        read_label_table(path, SpeedRule())


EXTRACT = """<osm version="0.6">
<node id="1" lat="55" lon="37"/><node id="2" lat="55.001" lon="37"/>
<node id="3" lat="55.002" lon="37"/><node id="4" lat="55.001" lon="37.001"/>
<way id="1"><nd ref="1"/><nd ref="2"/><nd ref="3"/><tag k="highway" v="primary"/>
 <tag k="lanes" v="4"/><tag k="maxspeed" v="60"/></way>
<way id="2"><nd ref="2"/><nd ref="4"/><tag k="highway" v="track"/><tag k="surface" v="dirt"/></way>
<way id="3"><nd ref="3"/><nd ref="4"/><tag k="highway" v="footway"/></way>
<way id="4"><nd ref="1"/><nd ref="4"/><tag k="waterway" v="river"/></way>
<way id="5"><nd ref="1"/><nd ref="2"/><nd ref="4"/><nd ref="1"/><tag k="landuse" v="forest"/></way>
</osm>"""


def test_extracts_are_labels_with_speeds_from_tags(tmp_path):
    path = tmp_path / "town.osm"
    path.write_text(EXTRACT)
    assert None is read_if_network(path)
    assert degree_counts(read_network(path)) == {1: 3, 3: 1}
    table = read_label_table(path, SpeedRule())
    assert table.mph[:2].tolist() == [55, 15]
    assert np.isnan(table.mph[2:]).all()
    rule = SpeedRule(speed_field="maxspeed", speed_unit="kmh", where="lanes = '4'")
    mph = read_label_table(path.read_bytes(), rule, path.name).mph
    assert mph == pytest.approx([37.28], abs=0.01)
    areas = SpeedRule(layer="multipolygons", where="landuse = 'forest'")
    assert shapely.get_type_id(read_label_table(path, areas).lines).tolist() == [3]
