"""Learning rates are a function of how far a run is."""

import pytest
import torch

from geoprep.errors import UsageError
from training.config import OptimizerConfig
from training.schedules import make_schedule
from training.stages import Plan, Stage, parse_stages


def schedule(name, epochs=10, **options):
    return make_schedule(OptimizerConfig(schedule=name, **options), epochs)


def test_one_cycle_is_that_of_torch():
    steps = 2001
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=steps)
    ours = schedule("onecycle")
    for step in range(steps):
        wanted = theirs.get_last_lr()[0]
        # torch counts its phases in whole steps, which shifts them by a part of a step.
        assert ours(10 * step / (steps - 1)) == pytest.approx(wanted, abs=0.002), step
        optimizer.step()
        if step < steps - 1:
            theirs.step()


def test_cosine_warms_up_and_comes_to_rest():
    course = schedule("cosine", warmup=2.0)
    assert course(1.0) == 0.5
    assert course(2.0) == 1.0
    assert course(6.0) == pytest.approx(0.5)
    assert course(10.0) == 0.0


def test_multistep_falls_after_its_milestones():
    course = schedule("multistep", epochs=30, warmup=0.0, milestones="20,25", gamma=0.2)
    assert [course(e) for e in (0.1, 20.0)] == [1.0, 1.0]
    assert course(20.1) == pytest.approx(0.2)
    assert course(29.0) == pytest.approx(0.04)


def test_constant_is_constant_and_warm_up_never_takes_most_of_a_run():
    assert schedule("constant", warmup=0.0)(0.5) == 1.0
    assert schedule("constant", epochs=1, warmup=5.0)(0.5) == 1.0


@pytest.mark.parametrize("options", [{"milestones": "20;25"}, {"warmup": -1.0}])
def test_nonsense_is_refused(options):
    with pytest.raises(UsageError):
        schedule("multistep", **options)


def test_stages_are_read_and_know_their_epochs():
    plan = Plan(parse_stages("325@256:2, 650:1"))
    assert plan.stages == (Stage(325, 256, 2), Stage(650, None, 1))
    assert plan.epochs == 3
    assert [plan.stage_of(e) for e in range(3)] == [0, 0, 1]
    assert [plan.is_last_of_stage(e) for e in range(3)] == [False, True, True]
    assert plan.first_epoch(1) == 2


@pytest.mark.parametrize("text", ["325", "325@256", "a@b:c", "325x256:3", ""])
def test_stages_written_otherwise_are_refused(text):
    with pytest.raises(UsageError, match="LEVEL@CROP:EPOCHS"):
        parse_stages(text)
