"""Positions are split over ranks without repeats or losses, but for the end of a training epoch."""

from hypothesis import assume, given
from hypothesis import strategies as st

from loaders.sampling import Schedule

sizes = st.integers(1, 200), st.integers(1, 9), st.integers(1, 5)


def ranks(samples, batch, world, **options):
    return [Schedule(samples, batch, rank, world, **options) for rank in range(world)]


def positions(schedules, start=0):
    steps = [step for schedule in schedules for step in schedule.steps(start)]
    return [p for step in steps for p in range(step.first, step.last, step.stride)]


@given(*sizes)
def test_evaluation_sees_every_position_exactly_once(samples, batch, world):
    split = ranks(samples, batch, world, drop_last=False, equal=False)
    assert sorted(positions(split)) == list(range(samples))
    assert all(len(s) == len(list(s.steps())) for s in split)
    assert max(map(len, split)) - min(map(len, split)) <= 1


@given(*sizes, st.booleans(), st.booleans(), st.data())
def test_training_ranks_take_equal_steps_without_gaps(samples, batch, world, drop, turns, data):
    assume(samples >= batch * world)
    split = ranks(samples, batch, world, drop_last=drop, equal=True, interleaved=turns)
    start = data.draw(st.sampled_from([0, *(step.done for step in split[0].steps())]))
    seen = positions(split, start)
    assert sorted(seen) == list(range(start, start + len(seen)))
    assert samples - start - len(seen) < (batch * world if drop else world)
    assert {len(s) for s in split} == {len(list(split[0].steps()))}
    for together in zip(*(s.steps(start) for s in split), strict=True):
        assert len({step.done for step in together}) == 1
        assert all(0 < len(range(*step[:2], step.stride)) <= batch for step in together)


@given(*sizes, st.integers(1, 9), st.integers(1, 5), st.data())
def test_another_number_of_ranks_resumes(samples, batch, world, batch2, world2, data):
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
