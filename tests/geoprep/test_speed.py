import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoprep.speed import (
    BACKGROUND,
    BIN_TABLE,
    BINARY_TABLE,
    BINNED_TABLE,
    CHANNEL_TABLE,
    CONTINUOUS_TABLE,
    NODATA,
    SPEED_VALID_TABLE,
    UNKNOWN_SPEED,
    VALID_TABLE,
    table_mph,
    to_byte,
)

# Speeds of the CRESI tools' table -> grey value and bin, as these tools print them.
CRESI = {
    **{15: (58, 2), 18.75: (73, 2), 20: (78, 2), 22.5: (88, 3), 25: (98, 3), 26.25: (102, 3)},
    **{30: (117, 3), 33.75: (132, 4), 35: (137, 4), 41.25: (161, 5), 45: (176, 5)},
    **{48.75: (191, 5), 55: (215, 6), 65: (255, 7)},
}
SHARED_BYTES = {19, 23, 34, 41, 49}

bytes_of_roads = st.integers(1, 253)


def test_table_gives_the_speeds_of_the_reference_and_no_other():
    speeds = {table_mph(t, n, p) for t in range(1, 8) for n in range(1, 13) for p in (True, False)}
    assert speeds == set(CRESI)


def test_table_speed():
    """Road type and lanes -> speed of paved roads; three quarters of it unpaved."""
    paved = {(1, 2): 55, (1, 3): 65, (2, 2): 45, (2, 3): 55, (3, 2): 35, (3, 4): 45, (4, 2): 30}
    paved |= {(4, 3): 35, (5, 2): 25, (5, 3): 30, (6, 12): 20, (7, 1): 20}
    for (road_type, lanes), mph in paved.items():
        assert table_mph(road_type, lanes, True) == mph
        assert table_mph(road_type, lanes, False) == 0.75 * mph


@pytest.mark.parametrize("mph", CRESI)
def test_codings_are_exact_for_every_speed_of_the_table(mph):
    byte, (grey, number) = to_byte(mph), CRESI[mph]
    assert CONTINUOUS_TABLE[byte] == grey
    assert BIN_TABLE[byte] == number
    assert BINNED_TABLE[byte] == 36 * number
    assert CHANNEL_TABLE[byte].nonzero()[0].tolist() == [number - 1, 7]


def test_continuous_coding_is_exact_but_for_bytes_shared_with_a_fractional_speed():
    for mph in range(1, 254):
        off = abs(int(CONTINUOUS_TABLE[mph]) - int(min(255, 255 * mph / 65)))
        assert off in ((1, 2) if mph in SHARED_BYTES else (0,)), mph


@given(bytes_of_roads)
def test_a_road_byte_is_in_one_bin_and_in_the_total(byte):
    channels = CHANNEL_TABLE[byte]
    assert channels[:7].sum() == 1
    assert channels[7] == 1 == BINARY_TABLE[byte] == VALID_TABLE[byte]
    assert channels[BIN_TABLE[byte] - 1] == 1
    assert 10 * (BIN_TABLE[byte] - 1) < byte
    assert byte <= 10 * BIN_TABLE[byte] or BIN_TABLE[byte] == 7


@pytest.mark.parametrize("byte", [BACKGROUND, NODATA])
def test_background_and_nodata_are_no_road(byte):
    tables = (BIN_TABLE, BINNED_TABLE, CONTINUOUS_TABLE, BINARY_TABLE, CHANNEL_TABLE)
    assert not any(table[byte].any() for table in tables)


def test_only_no_data_is_not_valid():
    assert np.flatnonzero(VALID_TABLE == 0).tolist() == [NODATA]
    assert np.flatnonzero(SPEED_VALID_TABLE == 0).tolist() == [UNKNOWN_SPEED, NODATA]


def test_a_road_of_unknown_speed_is_a_road_and_has_no_speed():
    assert BINARY_TABLE[UNKNOWN_SPEED] == 1
    assert CHANNEL_TABLE[UNKNOWN_SPEED].tolist() == [0] * 7 + [1]
    assert not any(table[UNKNOWN_SPEED] for table in (BIN_TABLE, BINNED_TABLE, CONTINUOUS_TABLE))
    assert to_byte(1e6) < UNKNOWN_SPEED


@pytest.mark.parametrize(
    "table", [BIN_TABLE, BINNED_TABLE, CONTINUOUS_TABLE, BINARY_TABLE, CHANNEL_TABLE, VALID_TABLE]
)
def test_tables_cover_every_byte_and_cannot_be_changed(table):
    assert table.dtype == np.uint8
    assert len(table) == 256
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1


@given(st.floats(0, 1e6))
def test_byte_is_the_nearest_whole_speed_within_its_range(mph):
    byte = to_byte(mph)
    assert byte.dtype == np.uint8
    assert abs(int(byte) - min(max(mph, 1), 253)) <= 0.5


def test_halves_round_up():
    assert to_byte([0.5, 1.5, 2.5, 22.5, 300]).tolist() == [1, 2, 3, 23, 253]


@pytest.mark.parametrize("mph", [np.nan, np.inf])
def test_a_speed_that_is_no_number_is_refused(mph):
    with pytest.raises(ValueError, match="NaN or infinite"):
        to_byte([20, mph])
