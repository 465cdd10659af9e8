"""Order, crops and symmetries are a function of (seed, epoch, position) alone."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loaders.sampling import Sampling, _hash

seeds = st.integers(-(2**63), 2**64)
epochs = st.integers(0, 10_000)


def columns(sampling, epoch, samples):
    w = sampling.crops(epoch, samples)
    return np.stack([w.tile, w.y, w.x, w.op, w.key])


@given(seeds, epochs, st.integers(1, 60), st.integers(1, 4))
def test_order_is_a_permutation_and_repeats(seed, epoch, tiles, crops):
    sampling = Sampling(tiles, 64, 32, "d4", crops, seed)
    order = sampling.order(epoch)
    assert sorted(order) == list(range(tiles * crops))
    assert (order == replace(sampling).order(epoch)).all()


@given(seeds, epochs, st.data())
def test_a_crop_does_not_depend_on_other_samples(seed, epoch, data):
    sampling = Sampling(50, 97, 40, "d4", 3, seed)
    samples = np.array(data.draw(st.lists(st.integers(0, 149), min_size=1, max_size=20)))
    together = columns(sampling, epoch, samples)
    alone = np.concatenate(
        [columns(sampling, epoch, samples[i : i + 1]) for i in range(len(samples))], axis=1
    )
    assert (together == alone).all()


@given(seeds, st.integers(1, 80), st.integers(1, 80))
def test_crops_are_inside_their_tile(seed, crop, more):
    side = crop + more - 1
    w = Sampling(9, side, crop, "flips", 4, seed).crops(0, np.arange(36))
    assert (w.tile == np.arange(36) // 4).all()
    assert ((w.y >= 0) & (w.y + crop <= side) & (w.x >= 0) & (w.x + crop <= side)).all()
    assert set(w.op) <= {0, 1, 2, 3}


def test_every_corner_and_symmetry_is_about_equally_frequent():
    w = Sampling(4000, 11, 8, "d4", seed=1).crops(0, np.arange(4000))
    for values, count in ((w.y, 4), (w.x, 4), (w.op, 8), (w.y * 4 + w.x, 16)):
        seen = np.bincount(values, minlength=count)
        assert len(seen) == count
        # Within six standard deviations of the binomial.
        assert abs(seen - 4000 / count).max() < 6 * np.sqrt(4000 / count)


def test_epochs_seeds_and_crops_of_a_tile_differ():
    sampling = Sampling(200, 512, 256, "d4", 2, seed=0)
    same = np.arange(400)
    for other in (columns(sampling, 1, same), columns(replace(sampling, seed=1), 0, same)):
        assert (columns(sampling, 0, same)[1] == other[1]).mean() < 0.05
    assert (sampling.order(0) != sampling.order(1)).mean() > 0.9
    y = sampling.crops(0, same).y
    assert (y[::2] == y[1::2]).mean() < 0.05


def test_unshuffled_order_is_that_of_the_tiles():
    assert Sampling(5, 8, shuffle=False).order(3).tolist() == [0, 1, 2, 3, 4]


def test_whole_tiles_start_at_their_corner_and_have_symmetries():
    w = Sampling(64, 32, None, "d4").crops(0, np.arange(64))
    assert not w.y.any()
    assert not w.x.any()
    assert len(set(w.op)) == 8


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30), seeds)
def test_weighted_tiles_come_within_two_of_their_expected_number(weights, seed):
    given_weights = np.array(weights)
    if given_weights.sum() < 1e-3:
        return
    n = len(weights)
    sampling = Sampling(n, 8, None, None, 5, seed, weights=given_weights)
    drawn = np.bincount(sampling.crops(0, sampling.order(0)).tile, minlength=n)
    expected = given_weights / given_weights.sum() * 5 * n
    assert len(drawn) == n
    assert (abs(drawn - expected) < 2).all()
    assert not drawn[given_weights == 0].any()


def test_weights_draw_only_from_the_chosen_tiles():
    sampling = Sampling(
        10, 8, None, None, 50, chosen=np.array([2, 5]), weights=np.array([1.0, 3.0])
    )
    drawn = np.bincount(sampling.crops(0, sampling.order(0)).tile, minlength=10)
    assert drawn[[2, 5]].tolist() == [25, 75]
    assert drawn.sum() == 100


def test_random_streams_of_a_sample_are_distinct():
    bits = np.concatenate([_hash(0, 0, stream, np.arange(500)) for stream in range(12)])
    assert len(set(bits.tolist())) == len(bits)
