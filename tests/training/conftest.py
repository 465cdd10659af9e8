"""Fixtures of the training tests: a small store, and `training.fit` as a function."""

import sys
from pathlib import Path

import pytest
import torch
from helpers.steps import SAMPLES
from helpers.stores import write_store

from geoprep.store import StoreReader
from training.fit import main

HERE = Path(__file__).resolve().parents[1]
USUAL = ("--device", "cpu", "--compile", "off", "--threads", "1", "--loader-threads", "1")
SMALL = ("--model", "helpers.tiny:build", *SAMPLES)


@pytest.fixture(scope="session")
def store_path(tmp_path_factory):
    """Return a store of 24 training and 8 validation tiles, 64 and 32 pixels wide. Read only."""
    return write_store(tmp_path_factory.mktemp("stores") / "tiny.zarr")


@pytest.fixture(scope="session")
def store(store_path):
    return StoreReader.open(store_path)


@pytest.fixture
def fit(store_path, monkeypatch):
    """Return a function that runs `training.fit` on the small store and returns its exit status."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(HERE))
    # It would change how this process allocates from then on.
    monkeypatch.setattr("training.run.start.keep_memory", lambda: "as it is")
    # The command changes random state, as a process of its own may.
    random = torch.get_rng_state()

    def run(*arguments, store=store_path, network=SMALL):
        stores = [str(store)] if store else []
        return main([*stores, *USUAL, *network, *map(str, arguments)])

    yield run
    torch.set_num_threads(threads)
    torch.set_rng_state(random)
    for name in [n for n in sys.modules if n == "helpers.tiny"]:
        del sys.modules[name]
