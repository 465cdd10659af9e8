"""Ranks of a torchrun job on one machine share one copy."""

import json

import pytest

from loaders import is_distributed, this_rank

JOB = """
import json, sys
import torch.distributed as dist
from loaders import BatchLoader, RamTiles, StreamTiles, memory
from loaders.memory import Available
from geoprep.errors import GeoprepError

dist.init_process_group("gloo")
store, incomplete, out = sys.argv[1:]
found = {}
try:
    RamTiles.load(incomplete)
except GeoprepError as error:
    found["error"] = f"{type(error).__name__}: {error}"
tiles = RamTiles.load(store)
loader = BatchLoader(tiles, 3, crop=16, augment="d4", crops_per_tile=2, seed=1)
with open("/proc/self/maps") as maps:
    inodes = [int(l.split()[4]) for l in maps if "memfd:loaders" in l]
handle = tiles.handle
memory.available_memory = lambda: Available(1_000_000 * (1 + dist.get_rank()), "this machine")
found |= {
    "inode": handle.inode, "mapped": handle.inode in inodes,
    "writer": tiles._stores is not None,
    "keys": [int(k) for batch in loader for k in batch.key], "steps": len(loader),
    "sum": int(tiles.image.sum()),
    "limit": StreamTiles.open(store, ram_limit=0.5).ram_limit,
}
with open(f"{out}/{dist.get_rank()}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_share_one_copy_the_epoch_and_errors(store_path, make_store, tmp_path, python):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = python(*launch, script, store_path, make_store(complete=False), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["inode"] == second["inode"]
    assert first["mapped"]
    assert second["mapped"]
    assert (first["writer"], second["writer"]) == (True, False)
    assert first["sum"] == second["sum"] > 0
    assert first["steps"] == second["steps"]
    assert len(set(first["keys"]) | set(second["keys"])) == 64 // 6 * 6
    assert not set(first["keys"]) & set(second["keys"])
    assert first["limit"] == second["limit"] == 500_000  # the smaller share
    assert first["error"].startswith("StoreError:")
    assert "rank 0, which loads for this machine, failed" in second["error"]
    assert "incomplete" in second["error"]


def test_a_process_without_torch_distributed_is_rank_0_of_1():
    assert not is_distributed()
    assert this_rank() == (0, 1)
