"""Training runs of benchmarks without the seconds that each takes to import torch."""

import pytest
from helpers.forks import Command

from benchmarks.child import ROOT


@pytest.fixture
def forked(forks, monkeypatch):
    """Fork the training runs, whose memory is then not measured."""

    def measure(command, interval):
        (done,) = forks.run(Command(tuple(command[1:]), str(ROOT)))
        assert done.returncode == 0, done.stderr
        return 1.0, 0

    monkeypatch.setattr("benchmarks.training.measure", measure)
