"""What a division into splits promises, whatever the scenes are called."""

import warnings

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from geoprep.building.scene import TEST, TRAIN, VAL
from geoprep.building.splits import assign_splits, blocks

counts = st.integers(1, 120)
seeds = st.integers(0, 1000)
shares = st.sampled_from([(0.2, 0.0), (0.2, 0.1), (0.05, 0.05), (0.5, 0.3), (0.0, 0.2), (0.0, 0.0)])


def names(count):
    return [f"AOI_7_Moscow_chip{i}" for i in range(count)]


def split(count, share=(0.2, 0.1), seed=0, groups=None, labelled=None):
    groups = names(count) if groups is None else groups
    labelled = [True] * count if labelled is None else labelled
    return assign_splits(groups, labelled, val=share[0], test=share[1], seed=seed)


@example(3, (0.5, 0.3), 0)  # half of three is two, which would leave none to test on
@given(counts, shares, seeds)
def test_every_requested_split_gets_a_scene(count, share, seed):
    got = np.bincount(split(count, share, seed), minlength=3)
    assert got.sum() == count
    assert got[TRAIN] >= 1
    wanted = [kind for kind, part in ((VAL, share[0]), (TEST, share[1])) if part]
    for place, kind in enumerate(wanted):
        if count >= place + 2:
            assert got[kind] >= 1
    for kind, part in ((VAL, share[0]), (TEST, share[1])):
        if not part:
            assert got[kind] == 0


@given(st.integers(4, 200), shares, seeds)
def test_shares_are_met_to_the_nearest_scene(count, share, seed):
    got = np.bincount(split(count, share, seed), minlength=3)
    for kind, part in ((VAL, share[0]), (TEST, share[1])):
        assert abs(got[kind] - part * count) <= max(0.5, 1 - part * count) or got[kind] == 1


def test_the_division_does_not_depend_on_the_order_of_the_scenes():
    ids = names(50)
    order = np.random.default_rng(3).permutation(50)
    shuffled = split(50, groups=[ids[i] for i in order])
    np.testing.assert_array_equal(shuffled, split(50)[order])


@given(st.integers(20, 150), st.integers(1, 10), seeds)
def test_added_scenes_move_few_of_the_others(count, added, seed):
    before = split(count, (0.2, 0.0), seed)
    after = split(count + added, (0.2, 0.0), seed)[:count]
    assert np.count_nonzero(before != after) <= added + 1
    # The boundary between two splits moves by the shares of what was added, and those who enter.
    before = split(count, (0.2, 0.1), seed)
    after = split(count + added, (0.2, 0.1), seed)[:count]
    assert np.count_nonzero(before != after) <= 2 * added + 2


@given(st.lists(st.integers(0, 9), min_size=2, max_size=90), shares, seeds)
def test_blocks_stay_together(cells, share, seed):
    groups = [("area", cell, 0) for cell in cells]
    got = split(len(cells), share, seed, groups=groups)
    for cell in set(cells):
        assert len({int(s) for s, c in zip(got, cells, strict=True) if c == cell}) == 1
    if share[0] and len(set(cells)) >= 2:
        assert (got == VAL).any()
        assert (got == TRAIN).any()


@given(st.lists(st.booleans(), min_size=2, max_size=90), seeds)
def test_unlabelled_scenes_take_no_validation_scene_from_the_labelled(labelled, seed):
    got = split(len(labelled), (0.2, 0.0), seed, labelled=labelled)
    have = np.array(labelled)
    alone = split(
        int(have.sum()),
        (0.2, 0.0),
        seed,
        groups=[n for n, h in zip(names(90), have) if h],  # noqa: B905 - names are plenty
    )
    np.testing.assert_array_equal(got[have], alone)
    if have.sum() >= 2:
        assert (got[have] == VAL).any()
        assert (got[have] == TRAIN).any()


# Blocks of ground


def chips(rows, cols, lon=37.5, lat=55.7, metres=400):
    """Return centres of touching chips as (longitude, latitude)."""
    per_lat = metres / 111_200
    per_lon = per_lat / np.cos(np.radians(lat))
    return [(lon + c * per_lon, lat + r * per_lat) for r in range(rows) for c in range(cols)]


def test_a_block_holds_the_chips_of_its_ground():
    centres = chips(20, 20)
    found = blocks(centres, ["moscow"] * 400, block_km=2.0)
    sizes = np.unique(np.array([f[1:] for f in found]), axis=0, return_counts=True)[1]
    assert sizes.max() in (25, 30, 36), "2 km is five chips of 400 m"
    assert 16 <= len(sizes) <= 25
    for cell in set(found):
        inside = np.array([c for c, f in zip(centres, found, strict=True) if f == cell])
        extent = np.ptp(inside, axis=0) * (111.2 * np.cos(np.radians(55.7)), 111.2)
        assert (extent <= 2.01).all()


def test_areas_share_no_block():
    centres = chips(1, 2, metres=1)
    assert len(set(blocks(centres, ["moscow", "mumbai"], 2.0))) == 2
    assert len(set(blocks(centres, ["moscow", "moscow"], 2.0))) == 1


def test_scenes_without_georeference_are_in_one_block():
    nowhere = (float("nan"), float("nan"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed = blocks([*chips(2, 2), nowhere], ["a"] * 5, 2.0)
        lost = blocks([*chips(2, 2), nowhere], ["a"] * 4 + ["b"], 2.0)
    assert mixed[:4] == blocks(chips(2, 2), ["a"] * 4, 2.0)
    assert lost[4] == ("b", 0, 0)
