"""Children of benchmarks without the seconds that each takes to import torch."""

import json

import pytest
from helpers.forks import Command

from benchmarks.child import ROOT


@pytest.fixture
def forked(forks, monkeypatch):
    """Fork training runs, and functions that are measured in a process of their own."""

    def run(command):
        (done,) = forks.run(Command(tuple(command[1:]), str(ROOT)))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(target, given, python=None):
        return json.loads(run((python, "-m", "benchmarks.child", target, json.dumps(given))))

    monkeypatch.setattr("benchmarks.fitting.runs.run", run)
    for place in ("fitting.ladder", "loading.load_rate"):
        monkeypatch.setattr(f"benchmarks.{place}.ask", ask)
