"""Commands run in this process: what each would import in one of its own takes seconds."""

import sys
from subprocess import CompletedProcess

import pytest


@pytest.fixture
def here(monkeypatch, capfd, same_process, entry_points):
    """Return a function that runs ``geoprep`` in a folder.

    What it returns is what `subprocess.run` would: exit status and what was printed. The status
    must be that asked for; with None it may be any.
    """
    from geoprep.cli.commands import cli
    from geoprep.cli.running import run as run_command

    def run(program, *words, folder, status=0):
        monkeypatch.chdir(folder)
        command = [program, *map(str, words)]
        monkeypatch.setattr(sys, "path", sys.path[:])
        capfd.readouterr()
        done = CompletedProcess(command, run_command(cli, command[1:]), *capfd.readouterr())
        assert status in (done.returncode, None), f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    return run
