"""Road networks and labels as OpenStreetMap data: for editors, from editors, and from extracts."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import shapely
from helpers.roads import degree_counts, mixed_network, network

from geoprep.errors import SourceError, UsageError
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.vector_labels import read_road_table
from geoprep.roads.formats.files import read_if_network, read_network, write_network

UTM = "EPSG:32737"
X, Y = 500_000, 9_000_000
SHARES = np.array([[0.9, 0.5], [0.8, 0.123], [0.7, 0], [0.123, 0.1]])
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
DRAWN = """
<node id='-90' lat='-9.0471' lon='39.0013649'/><node id='-91' lat='-9.045' lon='39.0013649'/>
<way id='-9'><nd ref='-90'/><nd ref='-4'/><nd ref='-91'/><tag k='highway' v='residential'/></way>
</osm>"""


@pytest.fixture
def written(tmp_path):
    made = replace(mixed_network(), confidence=SHARES)
    write_network(made, tmp_path / "roads.osm")
    return made, tmp_path / "roads.osm"


def assert_same(back, made):
    assert back.crs == made.crs
    assert np.array_equal(back.ends, made.ends)
    assert (shapely.hausdorff_distance(back.lines, made.lines) < 0.02).all()
    assert np.allclose(back.speed_mph, made.speed_mph, equal_nan=True)
    assert back.confidence == pytest.approx(made.confidence)


def test_a_network_is_read_back(written):
    made, path = written
    assert read_if_network(path)
    assert_same(read_network(path), made)
    write_network(mixed_network(speeds=None), path)  # all speeds unknown
    assert read_if_network(path)
    assert np.isnan(read_network(path).speed_mph).all()
    write_network(network(crs=UTM), path)
    assert not len(read_network(path).ends)


def test_edges_are_ways_that_share_nodes_at_junctions(written):
    root = ElementTree.parse(written[1]).getroot()
    assert root.attrib == {"version": "0.6", "generator": "geoprep", "upload": "false"}
    assert [int(node.get("id")) for node in root.iter("node")] == [-1, -2, -3, -4, -5, -6]
    ways = [[int(nd.get("ref")) for nd in way.iter("nd")] for way in root.iter("way")]
    assert ways == [[-1, -2], [-2, -4, -3], [-2, -3], [-3, -5, -6, -3]]
    tags = [{tag.get("k"): tag.get("v") for tag in way.iter("tag")} for way in root.iter("way")]
    assert tags[1] == {
        "highway": "road",
        "source": "geoprep",
        "geoprep:speed_mph": "18.75",
        "geoprep:confidence_mean": "0.8",
        "geoprep:confidence_least": "0.123",
    }
    assert "geoprep:speed_mph" not in tags[2]


def test_osmium_reads_it_and_geoprep_its_pbf(written):
    osmium = pytest.importorskip("osmium", reason="needs osmium, of the extra dev")
    made, path = written
    packed = path.with_name("roads.osm.pbf")
    with osmium.SimpleWriter(str(packed)) as writer:
        for one in osmium.FileProcessor(str(path)):
            nodes = {"nodes": [-nd.ref for nd in one.nodes]} if one.is_way() else {}
            writer.add(one.replace(id=-one.id, **nodes))  # OpenStreetMap's numbers are positive
    read = osmium.FileProcessor(str(packed)).with_locations()
    ways = [
        (dict(one.tags), [nd.location.valid() for nd in one.nodes]) for one in read if one.is_way()
    ]
    assert [len(valid) for _, valid in ways] == [2, 3, 2, 4]
    assert all(all(valid) and tags["highway"] == "road" for tags, valid in ways)
    assert_same(read_network(packed), made)


def test_a_network_that_was_edited_is_read_with_its_edits(written):
    path = written[1]
    text = path.read_text().replace("'road'/>", "'footway'/>", 1)
    path.write_text(text.replace("</osm>", DRAWN))
    back = read_network(path)
    assert degree_counts(back) == {1: 2, 2: 1, 4: 2}
    known = np.isfinite(back.speed_mph)
    assert sorted(back.speed_mph[known]) == [18.75, 18.75, 65]
    assert len(known) == 6
    path.write_text(path.read_text().replace("'road'", "'path'").replace("'residential'", "'path'"))
    assert not len(read_network(path).ends)


def test_extracts_are_labels_with_speeds_from_tags(tmp_path):
    path = tmp_path / "town.osm"
    path.write_text(EXTRACT)
    assert None is read_if_network(path)
    assert degree_counts(read_network(path)) == {1: 3, 3: 1}
    table = read_road_table(path, SpeedRule())
    assert table.mph[:2].tolist() == [55, 15]
    assert np.isnan(table.mph[2:]).all()
    rule = SpeedRule(speed_field="maxspeed", speed_unit="kmh", where="lanes = '4'")
    mph = read_road_table(path.read_bytes(), rule, path.name).mph
    assert mph == pytest.approx([37.28], abs=0.01)
    areas = SpeedRule(layer="multipolygons", where="landuse = 'forest'")
    assert shapely.get_type_id(read_road_table(path, areas).lines).tolist() == [3]


def test_a_long_edge_is_ways_of_at_most_2000_nodes(tmp_path):
    line = [(X + step, Y) for step in range(4500)]
    write_network(network(line, speeds=[30], crs=UTM), tmp_path / "long.osm")
    ways = list(ElementTree.parse(tmp_path / "long.osm").getroot().iter("way"))
    assert [len(list(way.iter("nd"))) for way in ways] == [2000, 2000, 502]
    assert read_network(tmp_path / "long.osm").length_m.sum() == pytest.approx(4499, abs=0.5)


def test_errors_name_the_file(tmp_path):
    with pytest.raises(UsageError, match=r"roads\.osm: .* not georeferenced.* Write a \.gpkg"):
        write_network(network([(0, 0), (9, 0)]), tmp_path / "roads.osm")
    (tmp_path / "bad.osm").write_text("<osm version='0.6'><node id='1'")
    with pytest.raises(SourceError, match=r"bad\.osm: not readable as a vector file"):
        read_network(tmp_path / "bad.osm")
