"""How a person may name one scene among many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoprep.errors import UsageError
from geoprep.sources.scene import match_scene, natural_key

IDS = [f"AOI_7_Moscow_chip{n}" for n in (1, 2, 11, 12, 112)] + ["AOI_8_Mumbai_chip1", "quay_west"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("AOI_7_Moscow_chip12", "AOI_7_Moscow_chip12"),
        ("chip12", "AOI_7_Moscow_chip12"),
        ("CHIP12", "AOI_7_Moscow_chip12"),
        ("12", "AOI_7_Moscow_chip12"),
        ("Moscow_chip1", "AOI_7_Moscow_chip1"),
        ("Mumbai_chip1", "AOI_8_Mumbai_chip1"),
        ("west", "quay_west"),
    ],
)
def test_scene_is_named_by_its_tail(typed, expected):
    assert IDS[match_scene(IDS, typed)] == expected


def test_a_tail_of_two_scenes_is_ambiguous_and_both_are_named():
    with pytest.raises(UsageError, match="AOI_7_Moscow_chip1, AOI_8_Mumbai_chip1"):
        match_scene(IDS, "chip1")


@pytest.mark.parametrize("typed", ["hip12", "est", "", "chip"])
def test_a_tail_begins_where_a_word_or_number_begins(typed):
    with pytest.raises(UsageError):
        match_scene(IDS, typed)


def test_a_name_nobody_has_gets_some_that_there_are():
    with pytest.raises(
        UsageError, match=r"no scene 'chip13' among \d+, such as AOI_7_Moscow_chip1"
    ):
        match_scene(IDS, "chip13")


def test_no_scenes_at_all_is_an_error_too():
    with pytest.raises(UsageError, match="among 0"):
        match_scene([], "chip1")


@given(st.lists(st.integers(0, 500), min_size=1, unique=True), st.data())
def test_every_scene_is_found_by_id_and_by_chip(numbers, data):
    ids = [f"AOI_7_Moscow_chip{n}" for n in numbers]
    index = data.draw(st.integers(0, len(ids) - 1))
    assert match_scene(ids, ids[index]) == index
    assert match_scene(ids, f"chip{numbers[index]}") == index


@given(st.lists(st.integers(0, 10**6)))
def test_numbers_sort_by_size(numbers):
    names = sorted((f"chip{n}" for n in numbers), key=natural_key)
    assert names == [f"chip{n}" for n in sorted(numbers)]


@given(st.lists(st.text(), unique=True), st.randoms())
def test_the_order_does_not_depend_on_how_files_were_listed(names, random):
    shuffled = list(names)
    random.shuffle(shuffled)
    assert sorted(shuffled, key=natural_key) == sorted(names, key=natural_key)
