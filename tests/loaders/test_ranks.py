"""Ranks of a torchrun job on one machine share one copy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loaders import is_distributed, this_rank

MakeStore = Callable[..., Path]

JOB = """
import json, os, sys
import torch.distributed as dist
from loaders import BatchLoader, RamTiles
from geoprep.errors import GeoprepError

dist.init_process_group("gloo")
store, out = sys.argv[1:]
found = {"rank": dist.get_rank()}
try:
    tiles = RamTiles.load(store)
    loader = BatchLoader(tiles, 3, crop=16, augment="d4", crops_per_tile=2, seed=1)
    with open("/proc/self/maps") as maps:
        inodes = [int(l.split()[4]) for l in maps if "memfd:loaders" in l]
    handle = tiles.handle
    found |= {
        "inode": handle.inode, "mapped": handle.inode in inodes,
        "writer": tiles._stores is not None,
        "keys": [int(k) for batch in loader for k in batch.key], "steps": len(loader),
        "sum": int(tiles.image.sum()),
    }
except GeoprepError as error:
    found |= {"error": f"{type(error).__name__}: {error}"}
with open(f"{out}/{dist.get_rank()}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


def torchrun(store: Path, folder: Path, ranks: int = 2) -> list[dict]:
    script = folder / "job.py"
    script.write_text(JOB)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(script), str(store), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.slow
def test_two_ranks_share_one_copy_and_the_epoch(store_path: Path, tmp_path: Path):
    first, second = torchrun(store_path, tmp_path)
    assert first["inode"] == second["inode"]
    assert first["mapped"]
    assert second["mapped"]
    assert (first["writer"], second["writer"]) == (True, False)
    assert first["sum"] == second["sum"] > 0
    assert first["steps"] == second["steps"]
    assert len(set(first["keys"]) | set(second["keys"])) == 64 // 6 * 6
    assert not set(first["keys"]) & set(second["keys"])


@pytest.mark.slow
def test_an_error_while_loading_is_raised_in_all_ranks(make_store: MakeStore, tmp_path: Path):
    first, second = torchrun(make_store(complete=False), tmp_path)
    assert first["error"].startswith("StoreError:")
    assert "rank 0, which loads for this machine, failed" in second["error"]
    assert "incomplete" in second["error"]


def test_a_process_without_torch_distributed_is_rank_0_of_1():
    assert not is_distributed()
    assert this_rank() == (0, 1)
