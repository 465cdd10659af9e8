"""Commands run in this process."""

import os

import pytest

from geoprep.cli import cli, run
from geoprep.cli.running import keep_libraries_quiet


@pytest.fixture
def geoprep(monkeypatch, capsys, tmp_path):
    """Return a function that runs a command in this process: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: None)

    def call(*arguments):
        keep_libraries_quiet()
        status = run(cli, list(map(str, arguments)))
        return status, *capsys.readouterr()

    return call
