"""The order of a stream: a shuffle that needs a bounded part of the tiles at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.sampling import Schedule
from loaders.tiles.shuffle_order import (
    LEAST_LANE,
    ShuffleWindow,
    StreamSampling,
    cut_runs,
    plan_reads,
)

shapes = st.builds(ShuffleWindow, st.integers(1, 9), st.integers(1, 40), st.integers(1, 8))


@st.composite
def samplings(draw, **fixed):
    """Draw tiles in shards with gaps, and what is sampled from them."""
    shard = np.sort(draw(st.lists(st.integers(0, 12), min_size=1, max_size=120)))
    options = {"crops_per_tile": draw(st.integers(1, 5)), "seed": draw(st.integers(0, 99))}
    if draw(st.booleans()):
        options["weights"] = 0.01 + np.random.default_rng(0).random(len(shard))
    if draw(st.booleans()):
        options["shuffle"] = False
        options.pop("weights", None)
    options |= {"shard": shard, "shape": draw(shapes)}
    return StreamSampling(len(shard), 8, **(options | fixed))


def rank_part(sampling, rank, world, start):
    schedule = Schedule(len(sampling), 3, rank, world, False, False, interleaved=sampling.shuffle)
    steps = schedule.steps(min(start, len(sampling)))
    parts = [np.arange(step.first, step.last, step.stride) for step in steps]
    return np.concatenate([np.arange(0), *parts])


def plan_of(sampling, positions, spare=0):
    samples = sampling.order(1)[positions]
    slots = max(sampling.shape.lane_tiles, 2 * sampling.shape.run) + spare
    return plan_reads(sampling, 1, positions, samples, slots), samples


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(1, 9))
def test_runs_stay_in_their_shard_and_are_nearly_equal(shards, most):
    shard = np.sort(shards)
    runs = cut_runs(shard, most)
    assert set(np.diff(runs)) <= {0, 1}
    assert runs[0] == 0
    for one in np.unique(shard):
        lengths = np.bincount(runs[shard == one])
        lengths = lengths[lengths > 0]
        assert lengths.max() <= most
        assert lengths.max() - lengths.min() <= 1
        assert len(lengths) == -(-lengths.sum() // most)
    assert all(len(set(shard[runs == run])) == 1 for run in np.unique(runs))


@given(samplings())
def test_an_epoch_holds_every_sample_once(sampling):
    assert sorted(sampling.order(0)) == list(range(len(sampling)))
    assert (sampling.order(3) == sampling.order(3)).all()


@given(samplings(), st.integers(1, 5), st.integers(0, 4), st.integers(0, 60), st.integers(0, 9))
def test_reading_in_the_order_of_need_never_waits_for_itself(sampling, world, rank, start, spare):
    positions = rank_part(sampling, rank % world, world, start * 2)
    if not len(positions):
        return
    plan, samples = plan_of(sampling, positions, spare)
    assert (plan.tile[plan.visit] == sampling.tile_of(1, samples)).all()
    first, last = np.full(len(plan.tile), len(samples)), np.full(len(plan.tile), -1)
    np.minimum.at(first, plan.visit, np.arange(len(samples)))
    np.maximum.at(last, plan.visit, np.arange(len(samples)))
    needed = [int(first[a:b].min()) for a, b in plan.reads]
    assert needed == sorted(needed)
    for (a, b), need in zip(plan.reads, needed, strict=True):
        before = plan.before[a:b]
        # All that was in these slots is over before anything of this read is needed.
        assert (last[before[before >= 0]] < need).all()
        assert (plan.slot[before[before >= 0]] == plan.slot[a:b][before >= 0]).all()
    taken = {int(slot) for slot in plan.slot[plan.before < 0]}
    assert len(taken) == (plan.before < 0).sum()  # who waits for nobody has a slot of its own


@given(samplings(), st.integers(1, 4))
def test_a_read_is_of_one_run_and_of_neighbours_in_memory(sampling, world):
    positions = rank_part(sampling, 0, world, 0)
    if not len(positions):
        return
    plan, _ = plan_of(sampling, positions)
    visited = np.zeros(len(plan.tile), int)
    for a, b in plan.reads:
        visited[a:b] += 1
        assert (np.diff(plan.tile[a:b]) > 0).all()
        assert (np.diff(plan.slot[a:b]) == 1).all()
        assert len(set(sampling.runs[plan.tile[a:b]])) == 1
    assert (visited == 1).all()


@given(samplings(shuffle=True, weights=None), st.sampled_from([1, 2, 3, 4, 8]))
def test_ranks_that_divide_the_lanes_read_disjoint_tiles(sampling, parts):
    lanes = sampling.shape.lanes
    world = parts if lanes % parts == 0 else 1
    visits = 0
    for rank in range(world):
        positions = rank_part(sampling, rank, world, 0)
        if len(positions):
            plan, _ = plan_of(sampling, positions)
            visits += len(plan.tile)
    # A tile whose samples lie on either side of a cut between two lanes is in both.
    assert sampling.tiles <= visits <= sampling.tiles + lanes - 1


def test_a_window_that_holds_everything_is_a_plain_shuffle():
    shape = ShuffleWindow.fitting(capacity=4000, lanes=4, tiles=1000)
    shard = np.arange(1000) // 32
    sampling = StreamSampling(1000, 8, seed=1, shard=shard, shape=shape)
    for lane in range(4):
        tiles = sampling.order(0)[lane::4]
        arrived = sampling.sequence(0)[tiles]
        assert abs(np.corrcoef(arrived, np.arange(len(tiles)))[0, 1]) < 0.2


def test_a_batch_mixes_many_shards():
    shape = ShuffleWindow.fitting(capacity=600, lanes=8, tiles=20_000)
    shard = np.arange(20_000) // 32
    sampling = StreamSampling(20_000, 8, seed=1, shard=shard, shape=shape)
    order = sampling.order(0)
    shards = [len(np.unique(shard[order[p : p + 32]])) for p in range(1000, 19_000, 32)]
    assert np.mean(shards) > 20  # of the 31.2 that a shuffle of all would have on average
    assert not (order == sampling.order(1)).all()


@pytest.mark.parametrize("lanes", [1, 8])
def test_half_the_memory_is_the_window(lanes):
    shape = ShuffleWindow.fitting(capacity=2400, lanes=lanes, tiles=100_000)
    assert shape.window * lanes == 1200
    assert shape.run == 8


@given(st.integers(1, 8), st.integers(0, 5000), st.integers(1, 9000))
def test_every_capacity_gives_a_window_that_fits_it(lanes, more, tiles):
    capacity = LEAST_LANE * lanes + more
    shape = ShuffleWindow.fitting(capacity, lanes, tiles)
    assert min(shape.window, shape.run) >= 1
    assert 4 * shape.lane_tiles * lanes <= 3 * capacity
