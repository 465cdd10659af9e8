"""Bands are found by their names, whatever these are written as."""

import pytest

from geoprep.imagery.band_names import common_name, match_bands

RGB = [("red", "red"), ("green", "green"), ("blue", "blue")]
UNNAMED = [("band 1", ""), ("band 2", ""), ("band 3", "")]


@pytest.mark.parametrize(
    ("name", "common"),
    [
        *(
            ("RED", "red"),
            ("Band 4 - Red", "red"),
            ("sr_blue_10m", "blue"),
            ("Red Edge 1", "rededge"),
        ),
        *(("Near Infrared", "nir"), ("nir08", "nir08"), ("Panchromatic", "pan")),
        *(("B04", ""), ("red/green", ""), ("reddish", ""), ("", "")),
    ],
)
def test_a_common_name_is_a_word_of_a_name(name, common):
    assert common_name(name) == common


@pytest.mark.parametrize(
    ("offered", "places"),
    [
        ([("Blue", "blue"), ("Green", "green"), ("RED", "red")], (2, 1, 0)),
        ([("nir", "nir"), ("red", "red"), ("green", "green"), ("blue", "blue")], (1, 2, 3)),
        ([("B02", "blue"), ("B03", "green"), ("B04", "red")], (2, 1, 0)),
        (UNNAMED, (0, 1, 2)),
        # One band has no name, and one name has no band.
        ([("blue", "blue"), ("band 2", ""), ("red", "red")], (2, 1, 0)),
        # A name that two bands have is none.
        ([("red", "red"), ("red", "red"), ("blue", "blue")], (0, 1, 2)),
    ],
)
def test_bands_are_matched_by_name_then_in_their_order(offered, places):
    assert match_bands(RGB, offered).places == places


def test_what_is_taken_in_order_is_said():
    assert match_bands(RGB, UNNAMED).unnamed
    assert match_bands(UNNAMED, RGB).unnamed
    assert not match_bands(UNNAMED, UNNAMED).unnamed
    assert not match_bands(RGB, RGB[::-1]).unnamed


@pytest.mark.parametrize(
    ("offered", "missing"),
    [
        ([("nir", "nir"), ("red", "red"), ("green", "green")], ("blue",)),
        ([("blue", "blue"), ("green", "green"), ("nir", "nir")], ("red",)),
        ([("B4", ""), ("B3", ""), ("B2", "")], ("red", "green", "blue")),
        ([*UNNAMED, ("band 4", "")], ("red", "green", "blue")),
        ([("red", "red")], ("green", "blue")),
    ],
)
def test_bands_of_other_names_are_missing(offered, missing):
    match = match_bands(RGB, offered)
    assert (match.places, match.missing) == ((), missing)


def test_only_default_bands_are_taken_in_order():
    assert match_bands(RGB, [("alpha", ""), *UNNAMED], default=[1, 2, 3]).places == (1, 2, 3)
