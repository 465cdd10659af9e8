"""Memory of loaders and their workers, measured and as `geoprep info` computes it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.stores import write_store

from geoprep.store.reader import StoreReader
from geoprep.views.facts import info

BATCH, CROP, WORKERS, SIDE = 32, 384, 2, 512

MEASURED = f"""
import gc, json, statistics, sys, time, warnings
import psutil
from torch.utils.data import DataLoader
from loaders import BatchLoader, RamTiles, TileDataset


def settled(pid=None):
    '''Return the memory of a process that no other shares (USS) when it stays the same.'''
    process, before = psutil.Process(pid), -1
    while True:
        gc.collect()
        now = process.memory_full_info().uss
        if abs(now - before) < 1 << 17:
            return now
        before = now
        time.sleep(0.5)


def load(split):
    return RamTiles.load(sys.argv[1], split, progress=False)


# What is loaded, compiled and kept once, whatever the number of tiles and batches.
first = next(iter(BatchLoader(load("train"), 1, crop=8, threads={WORKERS})))
del first
before = settled()
tiles = load("train"), load("val")
many = {{"crop": {CROP}, "crops_per_tile": 64}}
batches = iter(BatchLoader(tiles[0], {BATCH}, threads={WORKERS}, **many))
batch = next(batches)
total = settled() - before
del batch, batches
warnings.simplefilter("ignore")  # on one processor torch warns of several workers
loader = DataLoader(
    TileDataset(tiles[0], **many), {BATCH}, num_workers={WORKERS}, prefetch_factor=1,
    multiprocessing_context="fork",
)
batches = iter(loader)
batch = next(batches)
# The first has its next batch as well as the one that is held.
print(json.dumps([total, settled(batches._workers[-1].pid)]))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="USS needs /proc")
def test_memory_of_a_loader_and_of_a_worker_is_within_15_per_cent_of_the_arithmetic(tmp_path):
    store = write_store(tmp_path / "large.zarr", scenes=12, levels=(SIDE,))
    facts = info(StoreReader.open(store), batch_size=BATCH, crop=CROP, workers=WORKERS)
    computed = facts["memory"]["levels"][str(SIDE)]
    words = (sys.executable, "-c", MEASURED, str(store))
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    total, worker = json.loads(done.stdout)
    assert total == pytest.approx(computed["total"], rel=0.15)
    assert worker == pytest.approx(computed["worker_process"], rel=0.15)
