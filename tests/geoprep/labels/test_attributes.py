import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoprep.errors import LabelError
from geoprep.labels.attributes import PROPERTY_NAMES, detect_schema, road_speeds
from geoprep.labels.label_options import SPEED_FIELDS, SpeedRule

TABLE_SPEEDS = {15, 18.75, 20, 22.5, 25, 26.25, 30, 33.75, 35, 41.25, 45, 48.75, 55, 65}


def speeds_of(properties, rule):
    """Return the speeds of a file whose features have these properties."""
    return road_speeds(properties, set().union(*properties), rule, "roads.geojson")


def speed(properties, **rule):
    (only,) = speeds_of([properties], SpeedRule(**rule))
    return only


def without_values(found):
    """Return a speed, and its notes without the values that they name."""
    return found.mph, tuple(note.partition(": ")[0] for note in found.notes)


def sn3(**changes):
    return {"road_type": "5", "lane_number": "2", "paved": "1", "bridge_typ": "2"} | changes


def sn5(**changes):
    road = {"highway": "primary", "lanes": "2", "surface": "paved", "bridge": None}
    road |= {"OBJECTID": "1", "osm_id": 5.0, "inferred_speed_mph": 45.0}
    return road | {"inferred_speed_mps": 20.1168} | changes


def osm(**changes):
    return {"highway": "primary", "lanes": "2", "surface": "asphalt"} | changes


# --- SpaceNet 3 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spell", [str, int, float, lambda v: f" {v}.0 "])
def test_sn3_values_may_be_text_or_numbers(spell):
    road = {"road_type": spell(3), "lane_number": spell(4), "paved": spell(2)}
    assert speed(road) == (33.75, ())


def test_sn3_both_spellings_of_lanes_are_read_and_the_shapefile_one_first():
    assert speed(sn3(road_type=1, lane_number="3")).mph == 65
    assert speed({"road_type": 1, "lane_numbe": "3", "paved": 1}).mph == 65
    assert speed(sn3(road_type=1, lane_numbe="3", lane_number="1")).mph == 65
    assert speed(sn3(road_type=1, lane_numbe=None, lane_number="3")).mph == 65


def test_sn3_missing_keys_are_an_unclassified_paved_road():
    assert speed({}) == (20, ("road_type missing", "lane_number missing", "paved missing"))


@pytest.mark.parametrize(
    ("road", "mph", "note"),
    [
        *((sn3(road_type=value), 20, "road_type unknown") for value in ("0", "2.5", [2])),
        (sn3(road_type=None), 20, "road_type missing"),
        *((sn3(paved=value), 25, "paved unknown") for value in ("3", True)),
        (sn3(paved=""), 25, "paved missing"),
        (sn3(lane_number="0"), 25, "lane_number out of range"),
        (sn3(lane_number="13"), 30, "lane_number out of range"),
        *((sn3(lane_number=x), 25, "lane_number unknown") for x in ("two", "inf", 10**400)),
        (sn3(lane_number=math.nan), 25, "lane_number missing"),
        *((sn5(highway=value), 20, "highway unknown") for value in ("moon_road", 7)),
        (sn5(highway=None), 20, "highway missing"),
        (sn5(lanes=None), 45, "lanes missing"),
        (sn5(lanes="many;4?"), 45, "lanes unknown"),
        (sn5(lanes="99"), 55, "lanes out of range"),
        *((osm(surface=value), 45, "surface missing") for value in (None, "None")),
        (osm(surface="unobtainium"), 45, "surface unknown"),
        (osm(lanes="None"), 45, "lanes missing"),
    ],
)
def test_values_that_say_nothing_fall_back_and_are_noted(road, mph, note):
    assert without_values(speed(road)) == (mph, (note,))


@pytest.mark.parametrize(
    ("road", "mph"),
    [
        (sn5(highway="Motorway_Link", lanes="3.0"), 65),
        *((osm(surface=paved), 45) for paved in ("asphalt", "concrete:plates")),
        *((osm(surface=unpaved), 33.75) for unpaved in ("gravel", "Dirt")),
        (osm(lanes="4"), 55),
        *((osm(lanes=several), 55) for several in ("3;4", "['3', '4']", ["3", "4"], "[2, 4]")),
        *((osm(highway=x), 55) for x in ("['motorway_link', 'motorway']", "residential;trunk")),
        (osm(highway='["footway", "residential"]'), 25),
        (osm(surface="['gravel', 'asphalt']"), 45),
        ({"subtype": "road", "class": "residential", "lanes": 2, "surface": "paved"}, 25),
        ({"subtype": "road", "class": "trunk", "lanes": 2, "road_surface": '[{"value": "gravel"}]'},
         41.25),
    ],
)  # fmt: skip
def test_values_are_read_in_any_spelling(road, mph):
    assert speed(road) == (mph, ())


# --- SpaceNet 5 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("surface", [None, "unpaved", "gravel", "asphalt", "Paved", 1, ["paved"]])
def test_sn5_anything_but_the_text_paved_is_unpaved(surface):
    missing, known = surface is None, surface in ("unpaved", "gravel")
    notes = () if known else ("surface missing" if missing else "surface unknown",)
    assert without_values(speed(sn5(surface=surface))) == (33.75, notes)
    assert speed(sn5(surface="paved")) == (45, ())


# --- OpenStreetMap ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("highway", "mph"),
    [
        ("motorway", 55),
        ("residential", 25),
        ("cart_track", 20),
    ],
)
def test_osm_type_comes_from_highway_or_from_class_and_type(highway, mph):
    assert speed(osm(highway=highway)) == (mph, ())
    tagged = {"class": "highway", "type": highway, "lanes": 2, "surface": "paved"}
    assert speed(tagged) == (mph, ())


@pytest.mark.parametrize(
    ("road", "note"),
    [
        *(
            (osm(highway=way), "not driveable")
            for way in ("stopline", "step", "services", "construction")
        ),
        ({"class": "railway", "type": "rail"}, "not driveable"),
        ({"highway": None, "waterway": "river"}, "not driveable"),
        (osm(tunnel="yes"), "tunnel"),
    ],
)
def test_osm_lines_that_are_no_visible_road_have_no_speed(road, note):
    mph, notes = speed(road)
    assert math.isnan(mph)
    assert notes == (note,)


# --- which schema -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "schema"),
    [
        ({"road_type", "paved", "highway"}, "sn3"),
        ({"highway", "lanes", "inferred_speed_mph", "inferred_speed_mps"}, "osm"),
        ({"highway", "lanes", "surface", "OBJECTID", "osm_id"}, "sn5"),
        ({"class", "type"}, "osm"),
        ({"osm_id", "code", "fclass", "maxspeed", "tunnel"}, "osm"),
        ({"name"}, "sn3"),
    ],
)
def test_schema_is_told_by_property_names(names, schema):
    assert detect_schema(names) == schema


@pytest.mark.parametrize(
    ("fclass", "more", "mph"),
    [
        ("motorway", {}, 55),
        *((fclass, {}, 20) for fclass in ("track_grade3", "unknown")),
        ("residential", {"tunnel": "F"}, 25),
        ("residential", {"tunnel": "T"}, None),
        *((fclass, {}, None) for fclass in ("footway", "rail")),
        ("secondary", {"highway": "motorway"}, 55),
    ],
)
def test_roads_of_geofabrik_are_told_by_fclass(fclass, more, mph):
    found = speed({"osm_id": "1", "fclass": fclass} | more).mph
    assert math.isnan(found) if mph is None else found == mph


def test_schema_is_one_for_the_whole_file():
    bare = {"highway": "primary", "lanes": 2, "surface": None}
    speeds = speeds_of([bare, sn5()], SpeedRule())
    assert [each.mph for each in speeds] == [33.75, 45]


def test_a_named_schema_is_not_second_guessed():
    assert speed(sn5(surface=None), schema="osm").mph == 45


# --- speeds from a field ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "value"),
    [("mph", 22.5), ("kmh", 36.21024), ("mps", 10.0584), ("mph", "22.5"), ("mph", " 22.5 mph ")],
)
def test_field_speed_is_converted_from_its_unit(unit, value):
    assert speed(sn3(limit=value), speed_field="limit", speed_unit=unit) == (22.5, ())


def test_a_value_may_carry_its_own_unit():
    assert speed(sn3(maxspeed="30 mph"), speed_field="maxspeed", speed_unit="kmh").mph == 30
    assert speed(sn3(maxspeed="80 km/h"), speed_field="maxspeed").mph == pytest.approx(49.709695)
    assert speed(sn3(maxspeed="20 knots"), speed_field="maxspeed").mph == pytest.approx(23.015589)
    assert speed(sn3(maxspeed="['30 mph', '50 mph']"), speed_from="auto") == (40, ())


def test_a_speed_of_osmnx_that_maxspeed_contradicts_is_noted():
    """osmnx reads knots as km/h, and takes the mean of the type of road for 30;50."""
    note = "speed field inferred: maxspeed disagrees"
    for maxspeed, speed_kph, notes in (
        ("30;50", 44.2, (note,)), ("20 knots", 20, (note,)), ("50 mph", 80.47, ()),
        (None, 44.2, ()),
    ):  # fmt: skip
        road = osm(maxspeed=maxspeed, speed_kph=speed_kph)
        assert speed(road, speed_from="auto").notes == notes
    assert math.isnan(speed(osm(highway="footway", speed_kph=5), speed_from="auto").mph)


@pytest.mark.parametrize(("field", "unit"), SPEED_FIELDS.items())
def test_without_a_name_the_spellings_of_spacenet_are_read(field, unit):
    value = {"mph": 33.75, "mps": 33.75 * 0.44704, "kmh": 33.75 * 1.609344}[unit]
    assert speed(sn3(**{field: value}), speed_from="field") == (33.75, ())


def test_the_inferred_speed_goes_before_the_older_one():
    road = sn3(speed_mph=45, inferred_speed_mph=55)
    assert speed(road, speed_from="field").mph == 55
    assert speed(sn3(speed_mph=45, inferred_speed_mph=None), speed_from="field").mph == 45


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (None, "speed field missing"),
        *((value, "speed field unknown") for value in ("fast", {}, math.inf)),
        *((value, "speed field out of range") for value in (0, "-20", 254, 1e308)),
    ],
)
def test_absurd_field_values_fall_back_to_the_attributes(value, note):
    assert without_values(speed(sn3(limit=value), speed_field="limit")) == (25, (note,))
    found = speed(sn3(limit=value, road_type="?"), speed_field="limit")
    assert found.mph == 20
    assert found.notes[1] == "road_type unknown: ?"


def test_a_field_that_no_road_has_is_an_error_that_lists_what_there_is():
    with pytest.raises(LabelError, match=r"roads\.geojson.*limit.*lane_number, paved, road_type"):
        speed(sn3(), speed_field="limit")
    with pytest.raises(LabelError, match="inferred_speed_mph"):
        speed(sn3(), speed_from="field")


def test_no_roads_lack_no_field():
    assert speeds_of([], SpeedRule(speed_field="limit")) == []


# --- anything at all ----------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["primary", "footway", "paved", "gravel", "1", "2", "12", "yes", "highway"])
)
junk = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=3), scalars)
names = st.sampled_from(sorted(PROPERTY_NAMES | set(SPEED_FIELDS) | {"limit", "other"}))
roads = st.lists(st.dictionaries(names, junk, max_size=8), max_size=4)
schemas = st.sampled_from(["auto", "sn3", "sn5", "osm"])


@given(roads, schemas)
def test_no_attribute_whatever_gives_a_crash_or_a_speed_outside_the_table(properties, schema):
    properties = [{"highway": None}, *properties]
    speeds = speeds_of(properties, SpeedRule(schema=schema))
    assert len(speeds) == len(properties)
    for mph, notes in speeds:
        assert mph in TABLE_SPEEDS or (math.isnan(mph) and notes)


@given(roads, schemas, st.sampled_from(["mph", "kmh", "mps"]))
def test_no_field_value_whatever_gives_a_crash_or_a_speed_that_is_no_byte(properties, schema, unit):
    properties = [{"limit": None, "highway": None}, *properties, {"limit": "x"}]
    rule = SpeedRule(schema=schema, speed_field="limit", speed_unit=unit)
    for mph, notes in speeds_of(properties, rule):
        assert 0 < mph <= 253 or (math.isnan(mph) and notes)
