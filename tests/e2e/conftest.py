"""Commands run in this process: what each would import in one of its own takes seconds."""

import sys
from subprocess import CompletedProcess

import pytest


@pytest.fixture
def here(monkeypatch, capfd, same_process):
    """Return a function that runs ``geoprep`` or ``training.fit`` and the like in a folder.

    What it returns is what `subprocess.run` would: exit status and what was printed.
    """
    from geoprep.cli.running import run as run_geoprep
    from training.evaluate import main as evaluate
    from training.export import main as export
    from training.fit import main as fit
    from training.predict import main as predict

    trainers = {"training.fit": fit, "training.evaluate": evaluate, "training.predict": predict}
    trainers["training.export"] = export

    def run(program, *words, folder):
        monkeypatch.chdir(folder)
        command = [program, *map(str, words)]
        monkeypatch.setattr(sys, "argv", command)
        capfd.readouterr()
        status = run_geoprep() if program == "geoprep" else trainers[program](command[1:])
        return CompletedProcess(command, status, *capfd.readouterr())

    return run
