"""The order of scenes."""

from hypothesis import given
from hypothesis import strategies as st

from geoprep.sources.scene import natural_key


@given(st.lists(st.integers(0, 10**6)))
def test_numbers_sort_by_size(numbers):
    names = sorted((f"chip{n}" for n in numbers), key=natural_key)
    assert names == [f"chip{n}" for n in sorted(numbers)]


@given(st.lists(st.text(), unique=True), st.randoms())
def test_the_order_does_not_depend_on_how_files_were_listed(names, random):
    shuffled = list(names)
    random.shuffle(shuffled)
    assert sorted(shuffled, key=natural_key) == sorted(names, key=natural_key)
