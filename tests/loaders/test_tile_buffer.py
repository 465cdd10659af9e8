"""One memory limit for training and validation, which alternate."""

import tracemalloc

import numpy as np
import pytest
from helpers.streams import digest

from geoprep.errors import UsageError
from loaders import BatchLoader, StreamTiles

LIMIT = 3_000_000
"""Bytes; the tiles of train have 5.2 MB, those of val 1.3 MB."""


@pytest.fixture(scope="module")
def path(make_store):
    return make_store(scenes=25, levels=(128,))


def held():
    """Return the bytes of all arrays that were allocated since tracing began."""
    only = [tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)]
    return sum(t.size for t in tracemalloc.take_snapshot().filter_traces(only).traces)


@pytest.mark.parametrize("together", [True, False])
def test_training_and_validation_share_a_limit(path, together):
    tracemalloc.start()
    try:
        train = StreamTiles.open(path, "train", ram_limit=LIMIT, lanes=2)
        val = StreamTiles.open(path, "val", ram_limit=train if together else LIMIT, lanes=2)
        assert val.ram_limit == LIMIT
        loaders = BatchLoader(train, 4, crop=100), BatchLoader(val, 4, shuffle=False)
        most = 0
        for _ in range(2):
            for loader in loaders:
                for _ in loader:
                    most = max(most, held())
        assert (most <= LIMIT) is together
    finally:
        tracemalloc.stop()


def test_alternating_epochs_do_not_change_a_batch(path):
    train = StreamTiles.open(path, "train", ram_limit=LIMIT, lanes=2)
    alone = StreamTiles.open(path, "val", ram_limit=LIMIT, lanes=2)
    shared = StreamTiles.open(path, "val", ram_limit=train, lanes=2)
    expected = [digest(batch) for batch in BatchLoader(alone, 3, shuffle=False)]
    train_loader, val_loader = (
        BatchLoader(train, 4, crop=100),
        BatchLoader(shared, 3, shuffle=False),
    )
    for _ in range(2):
        for number, _ in enumerate(train_loader):
            if number == 2:
                break  # its threads may still read
        val_loader.set_epoch(0)
        assert [digest(batch) for batch in val_loader] == expected


def test_two_epochs_at_a_time_are_refused(path):
    train = StreamTiles.open(path, "train", ram_limit=LIMIT, lanes=2)
    val = StreamTiles.open(path, "val", ram_limit=train, lanes=2)
    running = iter(BatchLoader(train, 4, crop=100))
    next(running)
    with pytest.raises(UsageError, match="in the middle of an epoch"):
        next(iter(BatchLoader(val, 4, shuffle=False)))
    del running
    assert len(list(BatchLoader(val, 4, shuffle=False))) == 5
