"""Ranks share the samples of an epoch: on one machine one copy, on two machines a copy each.

Here a machine is a PID namespace with its own /proc: processes of two cannot attach to each other.
"""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from loaders import is_distributed, this_rank

JOB = """
import json, os, sys
import torch.distributed as dist
from geoprep.errors import GeoprepError
from loaders import BatchLoader, RamTiles, StreamTiles, memory
from loaders.memory import Available
from training.engine.distributed import on_rank_zero

dist.init_process_group("gloo")
rank, (out, incomplete, *stores) = dist.get_rank(), sys.argv[1:]
found, read = {"pid": os.getpid()}, []
try:
    RamTiles.load(incomplete)
except GeoprepError as error:
    found["error"] = f"{type(error).__name__}: {error}"
tiles = RamTiles.load(stores[rank])
loader = BatchLoader(tiles, 3, crop=16, augment="d4", crops_per_tile=2, seed=1)
with open("/proc/self/maps") as maps:
    inodes = [int(l.split()[4]) for l in maps if "memfd:loaders" in l]
handle = tiles.handle
memory.available_memory = lambda: Available(1_000_000 * (1 + rank), "this machine")
found |= {
    "inode": handle.inode, "mapped": handle.inode in inodes,
    "writer": tiles._stores is not None,
    "keys": [int(k) for batch in loader for k in batch.key], "steps": len(loader),
    "sum": int(tiles.image.sum()),
    "limit": StreamTiles.open(stores[rank], ram_limit=0.5).ram_limit,
    "sent": on_rank_zero(lambda: read.append(1) or {"step": 7, "weights": [0.5] * 3}),
    "read": len(read),
}
with open(f"{out}/{rank}.json", "w") as file:
    json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def job(make_store, tmp_path):
    """Return the words that run the job, but for the stores of its two ranks."""
    (tmp_path / "job.py").write_text(JOB)
    return [tmp_path / "job.py", tmp_path, make_store(complete=False)]


def found_by_ranks(folder):
    """Return what the ranks wrote, who have shared an epoch and what the first of them read."""
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    assert first["sum"] == second["sum"] > 0
    assert first["steps"] == second["steps"]
    assert not set(first["keys"]) & set(second["keys"])
    assert len(set(first["keys"]) | set(second["keys"])) == 64 // 6 * 6
    assert (first["read"], second["read"]) == (1, 0)
    assert first["sent"] == second["sent"] == {"step": 7, "weights": [0.5, 0.5, 0.5]}
    return first, second


@pytest.mark.slow
def test_two_ranks_share_one_copy_the_epoch_and_errors(store_path, job, tmp_path, python):
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = python(*launch, *job, store_path, store_path)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = found_by_ranks(tmp_path)
    assert first["inode"] == second["inode"]
    assert first["mapped"]
    assert second["mapped"]
    assert (first["writer"], second["writer"]) == (True, False)
    assert first["limit"] == second["limit"] == 500_000  # the smaller share
    assert first["error"].startswith("StoreError:")
    assert "rank 0, which loads for this machine, failed" in second["error"]
    assert "incomplete" in second["error"]


@pytest.mark.slow
def test_ranks_on_two_machines_load_a_copy_each_and_share_the_epoch(store_path, job, tmp_path):
    apart = ["unshare", "--pid", "--fork", "--mount", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("no namespaces can be made here")
    own = shutil.copytree(store_path, tmp_path / "other machine.zarr")
    command = [*apart, sys.executable, *job, store_path, own]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(2):  # as torchrun --nnodes 2 --nproc-per-node 1 sets them on its two machines
        environment = {
            **os.environ,
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"},
            **{"RANK": str(rank), "GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": "2"},
            **{"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        }
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    ends = [rank.communicate(timeout=600)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    first, second = found_by_ranks(tmp_path)
    assert first["pid"] == second["pid"], "machines of their own count processes from 1"
    assert first["writer"]
    assert second["writer"], "the memory of another machine cannot be attached to"
    assert [one["error"][:11] for one in (first, second)] == ["StoreError:"] * 2


def test_a_process_without_torch_distributed_is_rank_0_of_1():
    assert not is_distributed()
    assert this_rank() == (0, 1)
