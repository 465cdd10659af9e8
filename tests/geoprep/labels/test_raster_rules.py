"""What the values of masks mean."""

import numpy as np
import pytest

from geoprep.errors import LabelError, UsageError
from geoprep.labels.raster_rules import make_class_rule, make_mask_rule
from geoprep.labels.value_tables import MaskPixels
from geoprep.speed import BIN_TABLE, NODATA, UNKNOWN_SPEED

ROAD = UNKNOWN_SPEED


def pixels(values, *, dtype="uint8", opaque=None, palette=None, tag=None):
    """Return one row of pixels; a value may be a tuple of bands."""
    values = np.array(values, dtype)
    values = values[None] if values.ndim == 1 else values.T
    if palette is not None:
        palette = np.array(palette + [(0, 0, 0)] * (256 - len(palette)), np.uint8)
    if opaque is not None:
        opaque = np.array([opaque], bool)
    tags = () if tag is None else (tag,)
    return MaskPixels(values[:, None], opaque, palette, tags, "chip_mask.png")


def codes(text, *given, nodata=None, **more):
    return make_mask_rule(text, None, nodata).label_bytes(pixels(*given, **more))[0][0].tolist()


@pytest.mark.parametrize(
    ("text", "values", "road"),
    [
        ("255", [0, 127, 254, 255], [3]),
        (">127", [0, 127, 128, 255], [2, 3]),
        (">=127", [0, 127, 128], [1, 2]),
        ("<10", [0, 10, 200], [0]),
        ("1,2,5", [0, 1, 2, 3, 5], [1, 2, 4]),
        ("255,0,0", [0, 1, 255], [0, 2]),
        ("#ffffff", [0, 254, 255], [2]),
    ],
)
def test_values_of_one_band(text, values, road):
    expected = [ROAD if i in road else 0 for i in range(len(values))]
    assert codes(text, values) == expected
    assert codes(text, values, dtype="int32") == expected
    assert codes(text, values, dtype="float32") == expected


RGB = [(0, 0, 0), (255, 0, 0), (255, 255, 255), (200, 210, 220)]


@pytest.mark.parametrize(
    ("text", "road"),
    [
        ("#ff0000", [1]),
        ("#FF0000,#ffffff", [1, 2]),
        ("255,0,0", [1]),
        ("255", [2]),
        (">127", [2, 3]),
    ],
)
def test_colours_of_three_bands(text, road):
    assert codes(text, RGB) == [ROAD if i in road else 0 for i in range(4)]


@pytest.mark.parametrize(("text", "road"), [("#ff0000", 1), ("255,0,0", 1), ("2", 2)])
def test_a_palette_is_asked_for_its_colours_or_its_values(text, road):
    found = codes(text, [0, 1, 2], palette=[(0, 0, 0), (255, 0, 0), (0, 0, 255)])
    assert found == [ROAD if i == road else 0 for i in range(3)]


def test_three_numbers_that_are_no_colour_of_a_palette_are_its_values():
    assert codes("1,2,5", [0, 1, 2, 5], palette=[(9, 9, 9)]) == [0, ROAD, ROAD, ROAD]


def test_what_is_unknown_is_told_by_an_option_alpha_a_tag_or_nan():
    assert codes("255", [0, 100, 255], nodata="100") == [0, NODATA, ROAD]
    assert codes("255", RGB, nodata="#ff0000") == [0, NODATA, ROAD, 0]
    assert codes("1", [0, 1, 1], opaque=[1, 1, 0]) == [0, ROAD, NODATA]
    assert codes("1", [0, 1, 9], tag=9.0) == [0, ROAD, NODATA]
    assert codes("1", [0, 1, np.nan], dtype="float32") == [0, ROAD, NODATA]


def test_nothing_is_unlabelled_where_label_nodata_is_none():
    """As GIS programs write masks: all but the roads is nodata, or transparent."""
    assert codes("1", [0, 1, 255], tag=255.0, nodata="none") == [0, ROAD, 0]
    assert codes("1", [0, 1, 1], opaque=[1, 1, 0], nodata="None") == [0, ROAD, 0]
    assert codes("1", [0, 1, np.nan], dtype="float32", nodata="none") == [0, ROAD, 0]
    assert speeds("mph", [0, 30, 255], tag=255.0, nodata="none") == [0, 30, 0]
    rule = make_class_rule("background,road=1", nodata="none")
    assert rule.label_bytes(pixels([1, 255], tag=255.0))[0][0].tolist() == [1, 0]
    assert rule.label_bytes(pixels([1, 1], opaque=[1, 0]))[0][0].tolist() == [1, 0]
    with pytest.raises(UsageError, match="needs the class background"):
        make_class_rule("road=1,water=2", nodata="none")


def test_a_tag_of_0_is_ground_and_a_tag_on_the_roads_value_does_not_hide_them():
    assert codes("255", [0, 255], tag=0.0) == [0, ROAD]
    assert codes("255", [0, 255], tag=255.0) == [0, ROAD]
    assert codes("255", [0, 255], tag=0.0, nodata="0") == [NODATA, ROAD]


def test_a_mask_of_many_bands_or_without_colours_is_refused():
    with pytest.raises(LabelError, match=r"chip_mask.png: has 2 bands.*gdal_translate"):
        codes("1", [(1, 2), (3, 4)])
    with pytest.raises(LabelError, match=r"road has the colour #ff0000.*one band.*`label_values`"):
        codes("#ff0000", [0, 255])


@pytest.mark.parametrize("text", ["", "road", ">", "#ff", "1;2", "> a"])
def test_what_cannot_be_read_is_refused_with_examples(text):
    with pytest.raises(UsageError, match=r"`label_values`.*write a value such as 255"):
        make_mask_rule(text, None, None)
    with pytest.raises(UsageError, match="`label_nodata`"):
        make_mask_rule("1", None, text)


# --- speeds -------------------------------------------------------------------------------------


def speeds(unit, *given, nodata=None, **more):
    return make_mask_rule(None, unit, nodata).label_bytes(pixels(*given, **more))[0][0].tolist()


def test_speeds_become_whole_mph():
    assert speeds("mph", [0, 15, 22.5, 65], dtype="float32") == [0, 15, 23, 65]
    assert speeds("kmh", [0, 50, 130]) == [0, 31, 81]
    assert speeds("mph", [0.2, -1, 30], dtype="float32", nodata="-1") == [1, NODATA, 30]


def test_a_mask_that_export_wrote_comes_back_byte_for_byte():
    assert speeds("mph", [0, 25, 253, 254, 255], tag=255.0) == [0, 25, 253, 254, 255]


@pytest.mark.parametrize("values", [[-3, 20], [0, 300]])
def test_speeds_that_are_none_are_refused(values):
    with pytest.raises(LabelError, match=r"holds .* mph.*`label_nodata`"):
        speeds("mph", values, dtype="int16")


@pytest.mark.parametrize("values", [list(range(8)), list(range(0, 253, 36))])
def test_bins_of_one_band_keep_their_number(values):
    found = speeds("bins", values)
    assert BIN_TABLE[found].tolist() == list(range(8))


def test_bins_of_eight_bands_as_cresi_writes_them():
    channels = np.zeros((4, 8), int)
    channels[1, [2, 7]] = 255  # 21 to 30 mph, and any road
    channels[2, 7] = 255  # a road of no bin
    channels[3, [0, 6, 7]] = 1  # the fastest of two
    found = speeds("bins", channels)
    assert found[2] == UNKNOWN_SPEED
    assert BIN_TABLE[found].tolist() == [0, 3, 0, 7]
    assert speeds("bins", channels, nodata="0")[0] == NODATA


def test_values_that_are_no_bins_are_refused():
    with pytest.raises(LabelError, match=r"holds 13, 99, which are not bins"):
        speeds("bins", [0, 13, 36, 99])
