"""Positions are split over ranks without repeats or losses, but for the end of a training epoch."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from geoprep.errors import UsageError
from loaders.sampling import Schedule

sizes = st.integers(1, 200), st.integers(1, 9), st.integers(1, 5)


def ranks(samples, batch, world, **options):
    return [Schedule(samples, batch, rank, world, **options) for rank in range(world)]


def positions(schedules, start=0):
    return [p for s in schedules for step in s.steps(start) for p in range(*step[:2])]


@given(*sizes)
def test_evaluation_sees_every_position_exactly_once(samples, batch, world):
    split = ranks(samples, batch, world, drop_last=False, equal=False)
    assert sorted(positions(split)) == list(range(samples))
    assert all(len(s) == len(list(s.steps())) for s in split)
    assert max(map(len, split)) - min(map(len, split)) <= 1


@given(*sizes, st.booleans())
def test_training_ranks_take_equal_steps(samples, batch, world, drop):
    assume(samples >= batch * world)
    split = ranks(samples, batch, world, drop_last=drop, equal=True)
    assert len({len(s) for s in split}) == 1
    seen = positions(split)
    assert len(set(seen)) == len(seen)
    assert samples - len(seen) < (batch * world if drop else world)
    for together in zip(*(s.steps() for s in split), strict=True):
        assert len({step.done for step in together}) == 1
        assert all(0 < step.last - step.first <= batch for step in together)


@given(*sizes, st.integers(1, 9), st.integers(1, 5), st.data())
def test_another_number_of_ranks_resumes_where_the_first_stopped(
    samples, batch, world, batch2, world2, data
):
    first = ranks(samples, batch, world, drop_last=False, equal=False)
    done = [0, *sorted({step.done for s in first for step in s.steps()})]
    stop = data.draw(st.sampled_from(done))
    before = [p for s in first for step in s.steps() if step.done <= stop for p in range(*step[:2])]
    second = ranks(samples, batch2, world2, drop_last=False, equal=False)
    assert sorted(before + positions(second, stop)) == list(range(samples))


@given(*sizes)
def test_a_step_of_many_ranks_is_a_step_of_one(samples, batch, world):
    assume(samples >= batch * world)
    one = list(Schedule(samples, batch * world).steps())
    many = list(zip(*(s.steps() for s in ranks(samples, batch, world)), strict=True))
    assert [(m[0].first, m[-1].last, m[0].done) for m in many] == [tuple(step)[:3] for step in one]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 0), "batch_size=0"),
        ((10, 2, 3, 3), "rank=3 is not within world_size=3"),
        ((10, 4, 0, 3), "10 samples do not fill one step of 4 x 3 ranks"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Schedule(*arguments)
