"""Commands run in this process."""

import os
import sys

import pytest

from geoprep.cli.running import run


@pytest.fixture
def geoprep(monkeypatch, capsys, tmp_path):
    """Return a function that runs a command in this process: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: None)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["geoprep", *map(str, arguments)])
        status = run()
        return status, *capsys.readouterr()

    return call
