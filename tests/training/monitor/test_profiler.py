"""The time breakdown of a step on an accelerator, with events of a device that is a counter."""

from itertools import count

import pytest
import torch

from training.monitor import profiler
from training.monitor.profiler import Clock, Profile

CUDA = torch.device("cuda")


class FakeEvent:
    """An event that passes as many milliseconds after the start as events were recorded before."""

    recorded = count()
    made = 0

    def __init__(self, device, enable_timing):
        assert (device, enable_timing) == (CUDA, True)

    def record(self):
        self.at = next(self.recorded)

    def elapsed_time(self, end):
        return float(end.at - self.at)


@pytest.fixture
def waits(monkeypatch):
    """Replace events, and return the number of times that the device was waited for."""
    counted = []
    monkeypatch.setattr(FakeEvent, "recorded", count())
    monkeypatch.setattr(torch, "Event", FakeEvent)
    monkeypatch.setattr(torch.accelerator, "synchronize", counted.append)
    return counted


def two_steps(clock):
    for _ in range(2):
        clock.next_step()
        for phase in ("forward", "backward", "forward"):  # as with two batches per step
            with clock(phase):
                pass


def test_a_device_is_timed_by_events_and_not_waited_for_in_between(waits):
    clock = Clock(CUDA)
    two_steps(clock)
    assert not waits
    assert clock.on_device() == {"forward": 2e-3, "backward": 1e-3}
    # From event to event: the first step ends where the second begins.
    assert clock.step_seconds() == pytest.approx(5.5e-3)
    assert set(clock.cpu()) == {"forward", "backward"}
    assert waits == [CUDA] * 2


def test_the_cpu_needs_no_events(waits):
    clock = Clock(torch.device("cpu"))
    two_steps(clock)
    assert clock.on_device() == {}
    assert clock.step_seconds() == pytest.approx(sum(clock.cpu().values()))
    assert not waits


def test_times_of_cpu_and_device_stand_beside_each_other():
    both = Profile(
        0.03,
        {"a": 0.01, "b": 0.01},
        {"a": 0.03, "b": 0.01},
        {"conv": (1, 30, 4), "cat": (3, 10, 1)},
    )
    assert list(both.phase_rows()) == [
        ("a", "10.0", "30.0", "75.0%"),
        ("b", "10.0", "10.0", "25.0%"),
    ]
    assert list(both.operator_rows()) == [
        ("conv", "25.0%", "75.0%", "4"),
        ("cat", "75.0%", "25.0%", "1"),
    ]
    alone = Profile(0.02, {"a": 0.01, "b": 0.03}, {}, {"conv": (1, 0, 4), "cat": (3, 0, 1)})
    assert list(alone.phase_rows()) == [("a", "10.0", "25.0%"), ("b", "30.0", "75.0%")]
    assert [row[0] for row in alone.operator_rows()] == ["cat", "conv"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [("off", "nothing"), ("model", "the model and the loss"), ("max-autotune", "max-autotune")],
)
def test_what_is_compiled_is_named(mode, words):
    assert profiler._compiled(mode).endswith(words)
