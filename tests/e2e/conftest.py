"""Commands run in this process: what each would import in one of its own takes seconds."""

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def here(monkeypatch, capfd) -> Callable[..., CompletedProcess[str]]:
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
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    monkeypatch.syspath_prepend(str(TESTS))
    for place in ("training.run.start", "training.engine.host"):  # how this process allocates
        monkeypatch.setattr(f"{place}.keep_memory", lambda *_, **__: "as it is")

    def run(program: str, *words: object, folder: Path) -> CompletedProcess[str]:
        monkeypatch.chdir(folder)
        command = [program, *map(str, words)]
        monkeypatch.setattr(sys, "argv", command)
        capfd.readouterr()
        status = run_geoprep() if program == "geoprep" else trainers[program](command[1:])
        return CompletedProcess(command, status, *capfd.readouterr())

    yield run
    torch.set_num_threads(threads)
    torch.set_rng_state(random)
