"""Fixtures of the training tests: a small store, and `training.fit` as a function."""

import sys

import pytest
from helpers.steps import SAMPLES
from helpers.stores import write_store

from geoprep.store.reader import StoreReader
from training.fit import main

USUAL = ("--device", "cpu", "--compile", "off", "--threads", "1", "--loader-threads", "1")


@pytest.fixture(scope="session")
def store_path(tmp_path_factory):
    """Return a store of 24 training and 8 validation tiles, 64 and 32 pixels wide. Read only."""
    return write_store(tmp_path_factory.mktemp("stores") / "tiny.zarr")


@pytest.fixture(scope="session")
def store(store_path):
    return StoreReader.open(store_path)


@pytest.fixture
def out(tmp_path):
    """Return the folder of a run, which is not there yet."""
    return tmp_path / "run"


@pytest.fixture
def command(capfd):
    """Return a function that runs a command, which ends as told, and returns what it prints."""

    def run(main, *words, status=0):
        capfd.readouterr()
        found = main([str(word) for word in words])
        printed = capfd.readouterr()
        assert found == status, printed
        return printed

    return run


@pytest.fixture
def fit(store_path, short_runs, command):
    """Return a function that runs `training.fit` on the small store as `command` does.

    The model is one of `helpers.tiny`, unless ``network`` names it with options of its own.
    """

    def run(*arguments, store=store_path, model="build", network=None, status=0):
        stores = [store] if store else []
        network = ("--model", f"helpers.tiny:{model}", *SAMPLES) if network is None else network
        return command(main, *stores, *USUAL, *network, *arguments, status=status)

    yield run
    for name in [n for n in sys.modules if n == "helpers.tiny"]:
        del sys.modules[name]


@pytest.fixture
def stoppable(fit, monkeypatch):
    """Return `fit` of a model with all kinds of state that Ctrl-C reaches in step ``at``."""
    network = ("--model", "helpers.tiny:interrupted", *SAMPLES)

    def run(*arguments, at=0, **options):
        monkeypatch.setenv("DOOM_AT", str(at))
        resumed = "--resume" in arguments
        usual = {"store": None, "network": network[:2]} if resumed else {"network": network}
        return fit(*arguments, **usual | {"status": 130 if at else 0} | options)

    return run
