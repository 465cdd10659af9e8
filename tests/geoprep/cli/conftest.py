"""Commands run in this process."""

import os

import pytest

from geoprep.cli.commands import cli
from geoprep.cli.running import keep_libraries_quiet, run


@pytest.fixture
def geoprep(monkeypatch, capsys, tmp_path):
    """Return a function that runs a command, which ends as told, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: None)

    def call(*arguments, status=0):
        keep_libraries_quiet()
        found = run(cli, list(map(str, arguments)))
        printed = capsys.readouterr()
        assert found == status, printed
        return printed

    return call
