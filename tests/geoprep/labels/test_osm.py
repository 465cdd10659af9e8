"""OpenStreetMap data: ways without nodes, ids of editors, damaged documents, extracts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import shapely
from helpers.roads import degree_counts

from geoprep.errors import LabelError
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.label_shapes import LabelFile
from geoprep.labels.vector_files import LOST
from geoprep.labels.vector_labels import read_label_table
from geoprep.roads.formats.files import read_if_network, read_network

PRIMARY = {"highway": "primary"}
SCENE = (37.0, 55.0, 37.1, 55.1)
# Written by osmium: nodes from -3 and way -9; way 9 without its nodes; a header alone.
WRITTEN = Path(__file__).parents[2] / "data" / "osm"


def node(number):
    return f'<node id="{number}" lat="{place(number)[1]}" lon="{place(number)[0]}"/>'


def place(number):
    return 37.01 + 0.001 * number, 55.05 + 0.001 * (number % 2)


def way(number, refs, tags=PRIMARY):
    points = "".join(f'<nd ref="{ref}"/>' for ref in refs)
    pairs = "".join(f'<tag k="{key}" v="{value}"/>' for key, value in tags.items())
    return f'<way id="{number}">{points}{pairs}</way>'


NODES = "".join(node(number) for number in range(1, 6))


def read(tmp_path, *objects, **rule):
    path = tmp_path / "town.osm"
    path.write_text(f'<osm version="0.6">{"".join(objects)}</osm>')
    return read_label_table(path, SpeedRule(**rule))


def drawn(table):
    """Return the number of points of each road that is drawn."""
    return sorted(len(line.coords) for line in table.roads().lines)


def test_ways_without_coordinates_are_not_no_road(tmp_path):
    none = read(tmp_path, way(8, [71, 72]), way(9, []))
    with pytest.raises(LabelError, match=r"town\.osm: none of its 1 feature has coord.*_;>;"):
        LabelFile.of(none).require_touch(SCENE, "EPSG:4326")
    assert not LabelFile.of(none).covers(SCENE, "EPSG:4326")
    empty = read(tmp_path, NODES, way(9, [1, 2], tags={}))
    LabelFile.of(empty).require_touch(SCENE, "EPSG:4326")


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
